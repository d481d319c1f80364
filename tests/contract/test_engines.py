"""Every engine: says whether it works and why not; steps, learns and tells its state by the contract; is proved."""

import os
import shutil
import time
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ergometer.analyze.proof import Proof
from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.engine import Engine
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.graph import RESULT, VELOCITY, Node
from ergometer.core.probe import Probe
from ergometer.core.spec import Spec
from ergometer.run.prove import BATCH, SCORES, proof_of
from ergometer.store.bundle import model_in, open_graph
from tests import lowering

ROOT = Path(__file__).parents[2]
ENGINES = registry.load_all("engines")
WORKING = [(name, device) for name, engine in ENGINES.items() for device in engine.devices if engine().probe(device).ok]
PORTABLE = [(name, device) for name, device in WORKING if ENGINES[name].portable]
TRAINING = [(name, device) for name, device in PORTABLE if "train" in ENGINES[name].modes]
# Together these have every operation of the suite; the slow tests take all networks.
QUICK = ("lenet", "resnet_reduced")
LARGE = ("bert", "vgg16", "vgg19", "mentee", "mentee_distilled", "alexnet")
DEEP = ("resnet101", "resnet152", "densenet100_12", "vgg19", "inception_v1")  # their sisters are here
CARRIED = [name for name in registry.names("models") if name not in ("dcgan", "dqn")]


@pytest.fixture(scope="module", autouse=True)
def captures() -> Iterator[None]:
    yield
    lowering.forget()


def load(name: str, device: str, mode: str, folder: Path, model: str = "lenet", **options: str) -> Engine:
    """The engine with a small network, ready to step."""
    directory = folder / mode
    shutil.copytree(lowering.captured(model, mode, False), directory)
    asked = Spec(model=model, engine=name, mode=mode, device=device, options=options)
    spec = replace(lowering.rehearsed(asked), threads=1)
    lowering.lower.build(lowering.job(spec, directory))
    found = replace(model_in(directory), lowered=open_graph(directory, mode, BATCH))
    engine: Engine = ENGINES[name]()
    engine.prepare()
    request = Request(fields=found.fields(), batch=BATCH, seed=0)
    engine.load(spec, found, registry.load("data", "synthetic").open(request).batch())
    return engine


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_describes_itself_and_says_why_it_does_not_work(name: str) -> None:
    engine = ENGINES[name]()
    assert engine.name == name and engine.title and engine.extra and engine.devices
    assert set(engine.modes) <= {"train", "infer"} and 0 < engine.strict <= engine.loose < 1
    assert all(len(choices) > 1 for choices in engine.options.values())
    for device in engine.devices:
        probe = engine.probe(device)
        assert isinstance(probe, Probe) and probe.reason
        assert probe.ok or probe.remedy
    assert not engine.probe("abacus").ok


@pytest.mark.parametrize("name", sorted({name for name, _ in PORTABLE}))
def test_an_unsupported_version_says_how_to_get_another(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ENGINES[name]()
    monkeypatch.setattr(engine, "excludes", ())
    bounds = {"0.0.1": f"0.0.1 is older than {engine.oldest[0]}"}
    bounds |= {"9999.0": f"9999.0 is not older than {engine.before[0]}"} if engine.before else {}
    for version, words in bounds.items():
        monkeypatch.setattr("importlib.metadata.version", lambda _, version=version: version)
        probe = engine.probe("cpu")
        assert not probe.ok and words in probe.reason and probe.remedy.startswith("pip install")


@pytest.mark.parametrize("name", [name for name, kind in ENGINES.items() if kind.portable])
def test_the_versions_that_work_are_those_that_are_installed(name: str) -> None:
    engine, project = ENGINES[name](), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [
        f"{sign}{'.'.join(map(str, bound))}" for sign, bound in ((">=", engine.oldest), ("<", engine.before)) if bound
    ]
    wanted = engine.distribution + ",".join(bounds)
    assert any(item.startswith(wanted) for item in project["optional-dependencies"][engine.extra])


@pytest.mark.parametrize("name", ["ort", "onnxruntime"])
def test_packages_that_exclude_each_other_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ergometer.engines._portable.installed", lambda _: True)
    probe = ENGINES[name]().probe("cpu")
    assert not probe.ok and "would overwrite it" in probe.reason and "environment of its own" in probe.remedy


def test_the_engines_that_a_test_run_must_prove_are_here() -> None:
    """tinygrad needs clang, and PoCL as an accelerator, which `make setup` installs where it may: in CI it must."""
    wanted = {("torch", "cpu"), ("mnn", "cpu"), ("litert", "cpu")}
    if shutil.which("clang"):
        wanted |= {("tinygrad", "cpu")}
    if os.environ.get("CI"):
        wanted |= {("tinygrad", "cpu"), ("tinygrad", "opencl")}
    assert wanted <= set(WORKING)


@pytest.mark.parametrize(("name", "device"), TRAINING)
def test_a_training_step_is_stamped_and_learns(name: str, device: str, tmp_path: Path) -> None:
    engine = load(name, device, "train", tmp_path)
    before = time.monotonic_ns()
    steps = [engine.step() for _ in range(3)]
    after = time.monotonic_ns()
    marks = [mark for step in steps for mark in step.marks]
    assert engine.phases == ("step",) and marks == sorted(marks) and before <= marks[0] and marks[-1] <= after
    assert engine.threads() == 1
    learning = engine.learn(5)
    assert learning.losses[-1] < learning.losses[0] and not learning.stuck
    parts, _ = engine.memory()
    graph = open_graph(tmp_path / "train", "train", BATCH).graph
    assert parts.parameters == graph.bytes_of(graph.parameters) == parts.optimizer
    assert parts.gradients is None and parts.activations is None
    assert engine.versions()[name]
    engine.close()


@pytest.mark.parametrize(("name", "device"), TRAINING)
def test_another_batch_is_really_fed(name: str, device: str, tmp_path: Path) -> None:
    engine = load(name, device, "train", tmp_path)
    first = engine.rehearse({})
    values = open_graph(tmp_path / "train", "train", BATCH).graph.values
    other = [np.ones(values["image"].shape, np.float32), np.arange(BATCH)]
    engine.feed(other)
    second = engine.rehearse({})
    assert abs(float(first[RESULT]) - float(second[RESULT])) > 1e-4
    names = {key for key in second if key not in (RESULT,)}
    assert {key.removeprefix(VELOCITY) for key in names} == {
        f"{layer}.{kind}" for layer in ("conv1", "conv2", "fc1", "fc2") for kind in ("weight", "bias")
    }


@pytest.mark.parametrize(("name", "device"), PORTABLE)
def test_inference_is_a_forward_pass(name: str, device: str, tmp_path: Path) -> None:
    engine = load(name, device, "infer", tmp_path)
    assert engine.phases == ("forward",) and len(engine.step().marks) == 2
    parts, _ = engine.memory()
    assert parts.gradients == 0 == parts.optimizer


@pytest.mark.parametrize(("name", "device"), TRAINING)
def test_ops_are_traced_or_the_engine_says_why_not(name: str, device: str, tmp_path: Path) -> None:
    engine = load(name, device, "train", tmp_path)
    if engine.untraced:
        with pytest.raises(UsageError, match=engine.untraced[:20]):
            engine.ops(2)
        return
    engine.step()
    before = time.monotonic_ns()
    spans = engine.ops(2)
    after = time.monotonic_ns()
    steps, ops = ([span for span in spans if span.kind == kind] for kind in ("step", "op"))
    assert [span.step for span in steps] == [0, 1] and ops
    slack_ns = 2_000_000
    assert all(before - slack_ns <= span.start_ns <= span.end_ns <= after + slack_ns for span in ops)
    for step in steps:
        inside = sum(span.end_ns - span.start_ns for span in ops if span.step == step.step)
        assert 0 < inside <= (step.end_ns - step.start_ns) * 1.05
    assert {"conv1", "conv2", "fc1", "fc2"} <= {span.layer for span in ops}
    assert {"forward", "backward"} <= {span.phase for span in ops}


def patient(pairs: list[tuple[str, str]], models: tuple[str, ...]) -> list[Any]:
    """Engine, device and model. tinygrad compiles for minutes: what is larger than LeNet takes its time elsewhere."""
    return [
        pytest.param(
            *pair,
            model,
            marks=[pytest.mark.slow, pytest.mark.timeout(900)] if pair[0] == "tinygrad" and model != "lenet" else [],
        )
        for pair in pairs
        for model in models
        if pair[1] == "cpu" or model == "lenet"
    ]


def assert_right(name: str, device: str, model: str, folder: Path) -> None:
    if model in LARGE and name == "tinygrad":
        pytest.skip("minutes of compiling: `make matrix` has it")
    proof = lowering.proof(name, model, folder, device)
    assert not proof.reason, proof.reason


@pytest.mark.parametrize(("name", "device", "model"), patient(TRAINING, QUICK))
def test_training_is_right(name: str, device: str, model: str, tmp_path: Path) -> None:
    assert_right(name, device, model, tmp_path)


@pytest.mark.skipif(("tinygrad", "opencl") not in TRAINING, reason="tinygrad has no OpenCL here")
@pytest.mark.parametrize("accelerate", ["none", "forward", "forward+input", "forward+filter"])
def test_a_step_on_two_devices_is_right(accelerate: str, tmp_path: Path) -> None:
    proof = lowering.proof("tinygrad", "conv_only:depth=2,width=64", tmp_path, "opencl", accelerate=accelerate)
    assert not proof.reason, proof.reason


@pytest.mark.parametrize("device", [device for name, device in TRAINING if name == "tinygrad"])
def test_tf32_is_right_or_refused(device: str, tmp_path: Path) -> None:
    from ergometer.engines.tinygrad import _devices

    def proof(folder: Path, **options: str) -> Proof:
        return lowering.proof("tinygrad", "conv_only:depth=2,width=64", folder, device, **options)

    if _devices.limits_of(_devices.find(device)[1]).ampere:
        rounded, single = proof(tmp_path / "rounded", precision="tf32"), proof(tmp_path / "single")
        assert not rounded.reason, rounded.reason
        assert 1e-5 < rounded.overall("smooth") < 1e-2 and single.overall("smooth") < 1e-5
        accelerate = "none"
    else:
        accelerate = "both"
    with pytest.raises(UnavailableError, match="precision=tf32 is of products on NVIDIA GPUs"):
        proof(tmp_path / "refused", precision="tf32", accelerate=accelerate)


@pytest.mark.skipif(("tinygrad", "opencl") not in TRAINING, reason="tinygrad has no OpenCL here")
def test_products_and_transfers_of_a_step_are_told_apart(tmp_path: Path) -> None:
    found = {}
    for accelerate in ("both", "forward"):
        folder, model = tmp_path / accelerate, "conv_only:depth=2,width=64"
        spans = load("tinygrad", "opencl", "train", folder, model, accelerate=accelerate).ops(1)
        found[accelerate] = {(span.phase, span.layer, span.name) for span in spans if span.kind == "op"}
    assert {item for item in found["both"] if item[2].startswith(("conv", "transfer"))} == {
        ("forward", "conv1", "conv"),
        ("forward", "conv2", "conv"),
        ("backward", "conv2", "conv_input_gradient"),
        ("backward", "conv1", "conv_filter_gradient"),
        ("backward", "conv2", "conv_filter_gradient"),
    }
    forward = {item for item in found["forward"] if item[2].startswith(("conv", "transfer"))}
    assert {("forward", "conv1", "conv"), ("forward", "conv2", "conv")} <= forward
    moved = {(phase, name) for phase, _, name in forward if name.startswith("transfer")}
    assert any(phase == "forward" and name.endswith(" to CL") for phase, name in moved)
    assert any(phase == "backward" and name.startswith("transfer CL to ") for phase, name in moved)


@pytest.mark.skipif(("tinygrad", "opencl") not in TRAINING, reason="tinygrad has no OpenCL here")
def test_the_memory_of_a_gpu_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Parameters and velocities at least, as many bytes each; a CPU's is that of the process."""
    from ergometer.engines.tinygrad import _devices

    engine = load("tinygrad", "opencl", "train", tmp_path)
    engine.step()
    if _devices.is_cpu("CL"):
        assert engine.memory()[0].device_peak is None
        monkeypatch.setattr(_devices, "is_cpu", lambda name: False)
    parts, _ = engine.memory()
    assert parts.device_peak and parts.device_peak > parts.parameters + parts.optimizer + parts.input


@pytest.mark.skipif(("tinygrad", "opencl") not in TRAINING, reason="tinygrad has no OpenCL here")
def test_what_an_accelerator_lacks_is_on_the_cpu_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tinygrad.device import CompileError

    from ergometer.engines.tinygrad import _placed, _session
    from ergometer.engines.tinygrad._products import Products

    known = _session.rules(Products())

    def relu(node: Node, x: Any) -> Any:
        if x.device == "CL":
            raise CompileError("no such thing")
        return known["relu"](node, x)

    for module in (_placed, _session):
        monkeypatch.setattr(module, "rules", lambda _: known | {"relu": relu})
    engine = load("tinygrad", "opencl", "train", tmp_path)
    (said,) = engine.remarks
    assert said == "relu: on the CPU, because the accelerator cannot run it (no such thing)"
    proof = lowering.proof("tinygrad", "lenet", tmp_path / "proof", "opencl")
    assert not proof.reason, proof.reason


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", [name for name in CARRIED if name not in (*QUICK, *DEEP)])
@pytest.mark.parametrize("name", [name for name, device in TRAINING if device == "cpu" and name != "tinygrad"])
def test_training_is_right_for_every_network(name: str, model: str, tmp_path: Path) -> None:
    try:
        assert_right(name, "cpu", model, tmp_path)
    finally:
        lowering.forget()  # gigabytes


@pytest.mark.parametrize(("name", "device", "model"), patient(PORTABLE, ("lenet", "mobilenet_v2", "squeezenet")))
def test_inference_is_right(name: str, device: str, model: str, tmp_path: Path) -> None:
    found = lowering.variant(name, model, "infer", tmp_path, smooth=False, device=device)
    (result,) = found["differences"]
    assert result["error"] < SCORES["float32"] and found["same_top"] == 1.0


@pytest.mark.parametrize("name", [name for name, _ in PORTABLE if "int8" in ENGINES[name].options.get("precision", ())])
def test_eight_bits_are_used_and_what_they_change_is_told(name: str, home: Path) -> None:
    proof = proof_of(Spec(model="lenet", engine=name, mode="infer", options={"precision": "int8"}))
    error, same = proof.overall("inference"), proof.variants["inference"]["same_top"]
    assert not proof.reason and 1e-3 < error < 0.1 and 0.85 <= same <= 1


@pytest.mark.parametrize(("name", "device"), [pair for pair in TRAINING if pair[0] != "tinygrad"])
def test_dropout_masks_are_used(name: str, device: str, tmp_path: Path) -> None:
    """The same state and batch with other masks gives another loss, and the same masks the same."""
    directory = lowering.captured("nin", "train", False)
    graph = open_graph(directory, "train", BATCH).graph
    (mask,) = graph.masks
    ones = {mask: np.ones(graph.values[mask].shape, np.float32)}
    zeros: dict[str, Any] = {mask: np.zeros(graph.values[mask].shape, np.float32)}
    losses = []
    for number, masks in enumerate((ones, zeros, ones)):
        engine = load(name, device, "train", tmp_path / str(number), "nin")
        losses.append(float(engine.rehearse(masks)[RESULT]))
    assert losses[0] == pytest.approx(losses[2], rel=1e-5) and abs(losses[0] - losses[1]) > 3e-4
