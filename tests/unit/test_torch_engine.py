"""torch, which the others are compared with: steps on the monotonic clock, traces ops, and knows its memory."""

import os
import time
from typing import Any

import pytest
import torch
from torch import nn

from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.engine import Engine
from ergometer.core.errors import UsageError
from ergometer.core.model import Model, Pass
from ergometer.core.spec import Spec

ENGINES = registry.load_all("engines")
DEVICES = [device for device in ENGINES["torch"].devices if ENGINES["torch"]().probe(device).ok]


def small_net(input: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, classes)
    )


SMALL = Model(name="small", title="small", task="test", input=(3, 16, 16), classes=4, build=small_net)


def synthetic(model: Model, batch: int) -> tuple[Any, ...]:
    return registry.load("data", "synthetic").open(Request(fields=model.fields(), batch=batch, seed=0)).batch()


@pytest.fixture(params=DEVICES)
def training(request: pytest.FixtureRequest) -> Engine:
    return load("torch", request.param, mode="train")


def load(name: str, device: str, mode: str, model: Model = SMALL) -> Engine:
    engine: Engine = ENGINES[name]()
    engine.prepare()
    batch = synthetic(model, 4)
    engine.load(Spec(model=model.name, engine=name, device=device, mode=mode, batch=4, threads=1), model, batch)
    return engine


def test_steps_are_stamped_on_the_monotonic_clock(training: Engine) -> None:
    before = time.monotonic_ns()
    steps = [training.step() for _ in range(3)]
    after = time.monotonic_ns()
    marks = [mark for step in steps for mark in step.marks]
    assert training.phases == ("forward", "backward", "optimizer")
    assert all(len(step.marks) == 4 for step in steps)
    assert marks == sorted(marks)
    assert before <= marks[0] and marks[-1] <= after


def test_ops_carry_phase_layer_and_the_monotonic_clock(training: Engine) -> None:
    before = time.monotonic_ns()
    spans = training.ops(3)
    after = time.monotonic_ns()
    steps = [span for span in spans if span.kind == "step"]
    ops = [span for span in spans if span.kind == "op"]
    assert [span.step for span in steps] == [0, 1, 2]
    slack_ns = 200_000  # kineto's clock and ours are joined by reading both
    assert all(before - slack_ns <= span.start_ns <= span.end_ns <= after + slack_ns for span in ops)
    assert {span.phase for span in ops} == {"forward", "backward", "optimizer"}
    for phase in ("forward", "backward"):
        assert {"0", "1", "2", "3", "5"} <= {span.layer for span in ops if span.phase == phase}
    for span in ops:
        step = steps[span.step]
        assert step.start_ns - slack_ns <= span.start_ns and span.end_ns <= step.end_ns + slack_ns
    backward = [span for span in ops if span.phase == "backward"]
    attributed = sum(span.end_ns - span.start_ns for span in backward if span.layer)
    assert attributed > 0.95 * sum(span.end_ns - span.start_ns for span in backward)


def test_an_op_is_attributed_to_the_layer_that_issued_it(training: Engine) -> None:
    forward = {(span.name, span.layer) for span in training.ops(1) if span.kind == "op" and span.phase == "forward"}
    assert {
        ("conv2d", "0"),
        ("batch_norm", "1"),
        ("relu", "2"),
        ("linear", "5"),
        ("cross_entropy_loss", "(loss)"),
    } <= forward
    backward = {(span.name, span.layer) for span in training.ops(1) if span.kind == "op" and span.phase == "backward"}
    assert {("ConvolutionBackward0", "0"), ("NativeBatchNormBackward0", "1"), ("AddmmBackward0", "5")} <= backward


def test_a_layer_that_records_no_graph_node_gets_no_backward_op() -> None:
    """An op without a node carries the number of the next node; that node still belongs to its own layer."""

    class Detour(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.ones(3).mean()
            return x

    def build(input: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), Detour(), nn.ReLU(), Detour(), nn.Linear(8, classes))

    model = Model(name="d", title="d", task="t", input=(3, 2, 2), classes=4, build=build)
    ops = [span for span in load("torch", "cpu", "train", model).ops(2) if span.kind == "op"]
    backward = {(span.layer, span.name) for span in ops if span.phase == "backward"}
    assert {("5", "AddmmBackward0"), ("3", "ReluBackward0"), ("1", "AddmmBackward0")} <= backward
    assert not any(layer in ("2", "4") for layer, _ in backward)


def test_a_network_that_changes_its_course_is_still_attributed() -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 1), nn.Linear(4, 4)
            self.count = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            x = self.one(x) if self.count % 2 else torch.relu(self.two(x)) * 2
            return self.head(x.mean((2, 3)))

    fickle = Model(name="f", title="f", task="t", input=(3, 8, 8), classes=4, build=lambda input, classes: Fickle())
    spans = [span for span in load("torch", "cpu", "train", fickle).ops(4) if span.kind == "op"]
    for step in range(4):
        convolutions = {span.layer for span in spans if span.step == step and span.name == "conv2d"}
        backward = {span.layer for span in spans if span.step == step and span.name == "ConvolutionBackward0"}
        assert len(convolutions) == 1 and convolutions == backward
    assert {span.layer for span in spans if span.name == "conv2d"} == {"one", "two"}


def test_memory_parts_are_those_of_the_model(training: Engine) -> None:
    for _ in range(2):
        training.step()
    parts, spans = training.memory()
    count = 4 * sum(p.numel() for p in small_net((3, 16, 16), 4).parameters())
    assert (parts.parameters, parts.gradients, parts.optimizer) == (count, count, count)
    assert parts.input == 4 * 3 * 16 * 16 * 4 + 4 * 8
    feature_map = 4 * 8 * 14 * 14 * 4  # what the convolution gives, kept for the backward pass
    # The inputs of batch-norm, ReLU and pooling are kept for the backward pass, and little else.
    assert 2 * feature_map < parts.activations < 4 * feature_map
    if parts.device_peak is None:
        assert sum(span.memory_bytes for span in spans) > parts.activations


def test_activations_are_what_autograd_saves() -> None:
    def deep(input: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(
            *(layer for _ in range(8) for layer in (nn.Linear(500, 500), nn.Tanh())), nn.Linear(500, 4)
        )

    model = Model(name="mlp", title="m", task="t", input=(500,), classes=4, build=deep)
    engine = ENGINES["torch"]()
    data = synthetic(model, 200)
    engine.load(Spec(model="mlp", batch=200, threads=1), model, data)
    engine.step()
    known = {p.data_ptr() for p in engine.module.parameters()} | {engine.inputs[0].data_ptr()}
    saved: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = engine.forward()
    del loss
    assert engine.memory()[0].activations == pytest.approx(sum(saved.values()), rel=0.05)


def test_activations_grow_with_the_batch() -> None:
    def activations(batch: int) -> int:
        engine = ENGINES["torch"]()
        data = synthetic(SMALL, batch)
        engine.load(Spec(model="small", batch=batch, threads=1), SMALL, data)
        engine.step()
        return int(engine.memory()[0].activations)

    assert activations(32) == pytest.approx(4 * activations(8), rel=0.15)


def test_inference_has_one_phase_and_no_gradients() -> None:
    engine = load("torch", "cpu", "infer")
    assert engine.phases == ("forward",)
    engine.step()
    parts, _ = engine.memory()
    assert (parts.gradients, parts.optimizer) == (0, 0)
    assert {span.phase for span in engine.ops(2) if span.kind == "op"} == {"forward"}


def test_a_frozen_network_infers_and_is_refused_for_training() -> None:
    def build(input: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(12, classes)).requires_grad_(False)

    frozen = Model(name="f", title="f", task="t", input=(3, 2, 2), classes=4, build=build)
    assert len(load("torch", "cpu", "infer", frozen).step().marks) == 2
    with pytest.raises(UsageError, match="no trainable parameter"):
        load("torch", "cpu", "train", frozen)


def test_a_parameter_that_gets_no_gradient_is_stuck() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x) + 0 * self.unused(x)

    dead = Model(name="d", title="d", task="t", input=(4,), classes=4, build=lambda input, classes: Dead())
    learning = load("torch", "cpu", "train", dead).learn(3)
    assert set(learning.stuck) == {"unused.weight", "unused.bias"}


def test_a_bias_before_batch_norm_is_not_stuck() -> None:
    """Its true gradient is zero: the update is below its precision, and that is no fault of the network."""
    engine = load("torch", "cpu", "train")
    assert engine.learn(5).stuck == {}


def test_passes_companion_and_environment_are_attributed() -> None:
    """A step of two passes books each op on its own layer, and those of a frozen companion under its name."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(x)

    def loss(part: str) -> Any:
        return lambda module, companion, batch: (getattr(module, part)(batch[0]) - companion(batch[0])).square().mean()

    model = Model(
        name="p",
        title="p",
        task="t",
        input=(6,),
        classes=4,
        build=lambda input, classes: Pair(),
        passes=(
            Pass(name="a", loss=loss("one"), parameters="one."),
            Pass(name="b", loss=loss("two"), parameters="two."),
        ),
        companion=lambda input, classes: nn.Linear(6, 4),
    )
    engine = load("torch", "cpu", "train", model)
    assert engine.phases == ("forward", "backward", "optimizer") * 2
    ops = [span for span in engine.ops(3) if span.kind == "op"]
    layers = {(span.phase, span.layer) for span in ops if span.name in ("linear", "AddmmBackward0")}
    assert {("forward", "one"), ("forward", "two"), ("forward", "(companion)")} <= layers
    backward = [span.layer for span in ops if span.name == "AddmmBackward0"]
    assert backward == ["one", "two"] * 3
    parts, _ = engine.memory()
    assert parts.gradients == 4 * 28 and parts.parameters == 4 * 28 * 3


def test_attention_in_inference_is_counted() -> None:
    """torch fuses a whole transformer layer in inference; its multiply-accumulates count all the same."""

    def build(input: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Flatten(), nn.Linear(40, classes)
        )

    model = Model(name="t", title="t", task="t", input=(5, 8), classes=4, build=build)
    per_sample = 5 * (4 * 8 * 8 + 2 * 8 * 16) + 2 * 5 * 5 * 8 + 40 * 4
    assert load("torch", "cpu", "infer", model).counts().macs_forward == 4 * per_sample
    assert load("torch", "cpu", "train", model).counts().macs_forward == 4 * per_sample


def test_running_out_of_memory_is_recognised() -> None:
    engine = ENGINES["torch"]()
    assert engine.out_of_memory(MemoryError())
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    assert engine.out_of_memory(caught.value)
    assert not engine.out_of_memory(ValueError("shape"))


def test_threads_are_set() -> None:
    assert load("torch", "cpu", "train").threads() == 1
    torch.set_num_threads(len(os.sched_getaffinity(0)))
