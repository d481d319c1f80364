"""Several engines through the command line: proved before they are measured, refused where they are wrong."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ergometer.core import registry
from ergometer.run.environment import probe_of
from tests.conftest import Ergo, one_sentence

pytestmark = pytest.mark.xdist_group("engines")

QUICK = ("--steps", "30", "--threads", "1")
HERE = [name for name in ("litert", "mnn") if registry.load("engines", name)().probe("cpu").ok]

# An engine of an outside package: torch, but its convolutions get no gradient.
BROKEN = """
from ergometer.engines.torch.engine import Torch

class Broken(Torch):
    name = "broken"
    title = "an engine that forgets its convolutions"

    def versions(self):
        return {"broken": "1.0"}

    def backward(self, loss, number):
        super().backward(loss, number)
        for name, parameter in self.parameters.items():
            if parameter.ndim == 4:
                parameter.grad.zero_()
"""


@pytest.fixture
def broken(tmp_path: Path) -> dict[str, str]:
    """The environment in which the broken engine is installed."""
    (tmp_path / "broken_engine.py").write_text(BROKEN)
    about = tmp_path / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ergometer.engines]\nbroken = broken_engine:Broken\n")
    return {"PYTHONPATH": str(tmp_path)}


def records(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def test_the_engines_of_the_first_test_run_are_here() -> None:
    assert HERE == ["litert", "mnn"]


def test_a_sweep_over_engines_measures_the_same_thing(ergo: Ergo) -> None:
    engines = ["torch", *HERE]
    done = ergo("run", "lenet", "--engine", ",".join(engines), "--batch", "8", *QUICK, "--json", "-", timeout=300)
    assert done.returncode == 0, done.stderr
    found = records(done.stdout)
    assert [record["spec"]["engine"] for record in found] == engines
    counts = {
        (record["metrics"]["parameters"]["value"], record["metrics"]["macs_forward"]["value"]) for record in found
    }
    assert len(counts) == 1
    for record in found:
        metrics = record["metrics"]
        assert record["status"] == "ok" and record["host"]["engine_threads"] == 1
        assert {"load_time", "first_step_time", "step_time", "peak_memory", "memory.parameters"} <= metrics.keys()
        assert record["spec"]["engine"] in record["host"]["versions"]
    for record in found[1:]:
        assert record["absent"]["backward_time"] == "the engine runs a training step as one call"
        assert "memory.activations" in record["absent"]
        assert record["metrics"]["peak_memory"]["value"] <= 60e6
        proofs = [json.loads(path.read_text()) for path in (ergo.home / "proofs").glob("*.json")]
        assert record["spec"]["engine"] in {proof["engine"] for proof in proofs}


@pytest.mark.slow
def test_what_is_known_is_not_proved_again(ergo: Ergo) -> None:
    command = ("verify", "lenet", "--engine", HERE[0])
    assert ergo(*command).returncode == 0
    (path,) = (ergo.home / "proofs").glob("*.json")
    first = path.read_text()
    assert ergo(*command).returncode == 0 and path.read_text() == first
    assert ergo(*command, "--again").returncode == 0 and path.read_text() != first


def test_verify_shows_every_layer_and_writes_json(ergo: Ergo) -> None:
    done = ergo("verify", "lenet", "--engine", HERE[0], "--layers")
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in ("conv1", "conv2", "fc1", "fc2", "smooth", "actual", "right"))
    done = ergo("verify", "lenet", "--engine", HERE[0], "--json", "-")
    (proof,) = records(done.stdout)
    errors = {item["kind"]: item["error"] for item in proof["variants"]["smooth"]["differences"] if item["step"] == 1}
    assert errors["all gradients"] < 1e-4 and proof["versions"]


@pytest.mark.slow
def test_a_broken_engine_is_refused_and_the_sweep_goes_on(ergo: Ergo, broken: dict[str, str]) -> None:
    done = ergo("run", "lenet", "--engine", "broken,torch", *QUICK, "--json", "-", timeout=300, **broken)
    assert done.returncode == 1
    wrong, right = records(done.stdout)
    assert wrong["status"] == "unsupported" and "step_time" not in wrong["metrics"]
    assert "broken computes lenet wrongly: the gradient of conv" in wrong["reason"]
    assert right["status"] == "ok"
    done = ergo("verify", "lenet", "--engine", "broken", **broken)
    assert done.returncode == 1 and "wrong" in done.stdout and "conv1" in done.stdout


def test_an_engine_that_is_not_installed_is_a_row_that_says_how(ergo: Ergo) -> None:
    absent = next((name for name in registry.names("engines") if not probe_of(name, "cpu").ok), None)
    if absent is None:
        pytest.skip("every engine is installed here")
    done = ergo("run", "lenet", "--engine", f"{absent},torch", *QUICK, "--json", "-")
    first, second = records(done.stdout)
    assert first["status"] == "unsupported" and "pip install" in first["reason"]
    assert second["status"] == "ok"
    alone = ergo("run", "lenet", "--engine", absent, *QUICK)
    assert alone.returncode == 3 and "pip install" in one_sentence(alone)


def test_an_engine_whose_library_is_missing_is_a_row_that_says_so(ergo: Ergo, tmp_path: Path) -> None:
    """What is found before the installed package cannot load its native part."""
    (tmp_path / "MNN.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    done = ergo("run", "lenet", "--engine", "mnn,torch", *QUICK, "--json", "-", PYTHONPATH=str(tmp_path))
    first, second = records(done.stdout)
    assert first["status"] == "unsupported" and second["status"] == "ok"
    assert "does not load (libgomp.so.1: cannot open shared object file)" in first["reason"]
    assert "pip install --force-reinstall 'ergometer[mnn]'" in first["reason"]
    assert "Traceback" not in done.stderr


def test_a_network_that_an_engine_cannot_run_says_why(ergo: Ergo) -> None:
    done = ergo("run", "dcgan", "--engine", HERE[0], *QUICK, "--json", "-")
    (record,) = records(done.stdout)
    assert record["status"] == "unsupported" and "by turns" in record["reason"]
    done = ergo("verify", "dcgan", "lenet", "--engine", HERE[0], "--json", "-")
    proof, refused = records(done.stdout)
    assert done.returncode == 1 and proof["model"] == "lenet"
    assert refused["model"] == "dcgan" and "by turns" in refused["refused"]


def test_an_operation_that_the_bridge_does_not_know_is_named(ergo: Ergo, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "class Odd(nn.Module):\n    def forward(self, x): return torch.fft.rfft(x).abs()\n"
        "def build(): return nn.Sequential(nn.Flatten(), Odd(), nn.Linear(25, 4))\n"
    )
    done = ergo("run", f"{path}:build", "--input", "3x4x4", "--classes", "4", "--engine", HERE[0], "--json", "-")
    (record,) = records(done.stdout)
    assert record["status"] == "unsupported"
    assert "fft_rfft" in record["reason"] and "layer '1'" in record["reason"]


@pytest.mark.slow
def test_your_own_network_on_another_engine(ergo: Ergo, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\n"
        "def build(classes): return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),"
        " nn.Dropout(0.5), nn.Linear(288, classes))\n"
    )
    command = ("run", f"{path}:build", "--input", "3x8x8", "--classes", "4", "--batch", "4", "--engine", HERE[0])
    found = records(ergo(*command, *QUICK, "--json", "-", timeout=300).stdout)
    assert [record["status"] for record in found] == ["ok"], found[0]["reason"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "torhc"), "torch"),
        (("--engine", "torch:precision=int3"), "precision=float32|tf32|bf16"),
        (("--engine", "mnn:colour=red"), "no option colour=red"),
    ],
)
def test_a_wrong_engine_gets_one_sentence(ergo: Ergo, arguments: tuple[str, ...], words: str) -> None:
    done = ergo("run", "lenet", *arguments)
    assert done.returncode == 2 and words in one_sentence(done)


def test_options_of_torch_are_measured_and_named(ergo: Ergo) -> None:
    engine = "torch:layout=channels_last,precision=bf16"
    done = ergo("run", "lenet", "--engine", engine, *QUICK, "--json", "-")
    (record,) = records(done.stdout)
    assert record["status"] == "ok" and record["spec"]["options"] == {"layout": "channels_last", "precision": "bf16"}


def test_ctrl_c_while_a_network_is_made_ready(ergo: Ergo) -> None:
    process = ergo.start("run", "resnet50", "--engine", HERE[0], *QUICK)
    time.sleep(2.5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    (record,) = ergo.records()
    assert record["status"] == "interrupted"
    assert not list((ergo.home / "cache").glob("*")) if (ergo.home / "cache").exists() else True


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle."""
    folder = tmp_path_factory.mktemp("bundle")
    path = folder / "lenet.ergo"
    command = ("bundle", "lenet", "--engine", "litert", "--batch", "2,4", "-o", str(path))
    done = Ergo(folder / "home")(*command, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "ergo run lenet.ergo" in done.stdout
    return path


class TestBundles:
    def test_a_bundle_runs_with_its_own_engine(self, ergo: Ergo, made: Path) -> None:
        done = ergo("run", str(made), "--mode", "train,infer", "--batch", "4", *QUICK, "--json", "-", timeout=300)
        assert done.returncode == 0, done.stderr
        trained, inferred = records(done.stdout)
        assert trained["spec"]["engine"] == inferred["spec"]["engine"] == "litert"
        assert trained["metrics"]["parameters"]["value"] == 349_980
        (proof, *_) = [json.loads(path.read_text()) for path in (ergo.home / "proofs").glob("*.json")]
        assert set(proof["variants"]) == {"bundle"}, "proved here, without torch"

    @pytest.mark.parametrize(
        ("arguments", "status", "words"),
        [(("--engine", "torch"), 2, "was made for litert"), (("--input", "1x8x8"), 2, "leave out --input")],
    )
    def test_a_wrong_request_gets_one_sentence(
        self, ergo: Ergo, made: Path, arguments: tuple[str, ...], status: int, words: str
    ) -> None:
        done = ergo("run", str(made), *arguments)
        assert done.returncode == status and words in one_sentence(done)

    def test_a_batch_that_it_does_not_hold_names_those_it_does(self, ergo: Ergo, made: Path) -> None:
        (record,) = records(ergo("run", str(made), "--batch", "16", "--json", "-").stdout)
        assert record["status"] == "failed" and "choose --batch 2,4" in record["reason"]

    @pytest.mark.parametrize("content", [b"PK", b"", os.urandom(4096)])
    def test_a_foreign_file_gets_one_sentence(self, ergo: Ergo, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "foreign.ergo"
        path.write_bytes(content)
        done = ergo("run", str(path))
        assert done.returncode == 4 and "not a bundle" in one_sentence(done)

    def test_only_an_engine_that_runs_graphs_is_bundled(self, ergo: Ergo, tmp_path: Path) -> None:
        done = ergo("bundle", "lenet", "--engine", "torch", "-o", str(tmp_path / "x.ergo"))
        assert done.returncode == 2 and "litert" in one_sentence(done)
        done = ergo("bundle", "lenet", "--engine", "litert", "-o", str(tmp_path / "absent" / "x.ergo"))
        assert done.returncode == 2 and "directory that exists" in one_sentence(done)
