"""Every network of the suite as a canonical graph: the same loss, gradients and statistics as the module itself."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.errors import UnavailableError
from ergometer.core.graph import OPS, Graph
from ergometer.core.model import Model
from ergometer.core.spec import Spec
from ergometer.engines.torch.capture import capture
from ergometer.engines.torch.engine import Torch, cross_entropy
from ergometer.engines.torch.reference import run
from ergometer.run.prove import rehearsed
from ergometer.run.resolve import of_suite

MODELS: dict[str, Model] = registry.load_all("models")
ONLY_TORCH = {"dcgan": "by turns", "dqn": "learns from what it does"}
SMALLER = {"bert": "bert:size=small"}  # the same operations, in less time
CARRIED = sorted(set(MODELS) - set(ONLY_TORCH))


def deep(name: str) -> Any:
    """What is deep or large takes its time elsewhere."""
    slow = name in (
        "resnet101",
        "resnet152",
        "densenet100_12",
        "vgg19",
        "googlenet",
        "mentee_distilled",
        "bert",
        "seq2seq",
    )
    return pytest.param(name, marks=pytest.mark.slow) if slow else name


def small(name: str) -> Model:
    name = SMALLER.get(name, name)
    return of_suite(name, rehearsed(Spec(model=name)).input, None)


def loaded(model: Model, mode: str, batch: int = 2) -> Torch:
    engine = Torch()
    data = registry.load("data", "synthetic").open(Request(fields=model.fields(), batch=batch, seed=0)).batch()
    engine.load(Spec(model=model.name, mode=mode, batch=batch, threads=1), model, data)
    for part in engine.module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return engine


def doubled(graph: Graph, arrays: dict[str, Any]) -> dict[str, torch.Tensor]:
    state = {name: torch.from_numpy(array) for name, array in arrays.items()}
    state = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    for name in graph.parameters:
        state[name].requires_grad_(True)
    return state


@pytest.mark.parametrize("name", [deep(name) for name in CARRIED])
def test_a_graph_trains_as_its_module_does(name: str) -> None:
    engine = loaded(small(name), "train")
    before = {key: tensor.clone() for key, tensor in engine.module.state_dict().items()}
    graph, arrays = engine.capture()
    assert all(torch.equal(tensor, before[key]) for key, tensor in engine.module.state_dict().items())
    graph = Graph.from_json(json.loads(json.dumps(graph.to_json())))
    module = engine.module.double()
    if engine.companion is not None:
        engine.companion.double()
    batch = tuple(field.double() if field.is_floating_point() else field for field in engine.batch)
    loss = engine.passes[0].loss(module, engine.companion, batch)
    loss.backward()
    fields = dict(zip(engine.names, batch, strict=True))
    state = doubled(graph, arrays)
    found = run(graph, state, [fields[key] for key in graph.inputs])
    assert {key: tuple(tensor.shape) for key, tensor in found.items()} == {k: v.shape for k, v in graph.values.items()}
    found[graph.outputs[0]].backward()
    assert found[graph.outputs[0]].item() == pytest.approx(loss.item(), rel=1e-12)
    parameters = dict(module.named_parameters())
    assert set(graph.parameters) == set(parameters)
    zero = 1e-9 * max(float(parameter.grad.norm()) for parameter in parameters.values())  # before a batch-norm
    for key, parameter in parameters.items():
        error = (parameter.grad - state[key].grad).norm() / (parameter.grad.norm() + zero)
        assert error < 1e-8, f"{key} is off by {error:.1e}"
    statistics = {key for key, buffer in module.named_buffers() if buffer.is_floating_point()}
    assert set(graph.updates) == statistics
    for key, source in graph.updates.items():
        torch.testing.assert_close(found[source], module.get_buffer(key))


@pytest.mark.parametrize("name", [deep(name) for name in sorted(MODELS)])
def test_a_graph_infers_as_its_module_does(name: str) -> None:
    engine = loaded(small(name), "infer")
    graph, arrays = engine.capture()
    assert not graph.parameters and not graph.updates and not graph.masks
    fields = dict(zip(engine.names, engine.batch, strict=True))
    inputs = [fields[key].double() if fields[key].is_floating_point() else fields[key] for key in graph.inputs]
    found = run(graph, doubled(graph, arrays), inputs)[graph.outputs[0]]
    module = engine.module.double()
    with torch.inference_mode():
        expected = module(*(item.double() if item.is_floating_point() else item for item in engine.inputs))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", sorted(ONLY_TORCH))
def test_what_the_bridge_cannot_carry_says_so(name: str) -> None:
    with pytest.raises(UnavailableError, match=ONLY_TORCH[name]):
        loaded(small(name), "train").capture()


def test_tensors_are_named_after_their_layers() -> None:
    graph, _ = loaded(small("mobilenet_v2"), "train").capture()
    assert "conv1/conv" in graph.values and "conv1_bn/batch_norm" in graph.values
    for node in graph.nodes:
        assert node.op in OPS
        assert all(name.startswith(f"{node.layer}/{node.op}") for name in node.outputs) or not node.layer
    norms = [node for node in graph.nodes if node.op == "batch_norm"]
    assert len(norms) == 52 and all(node.attributes["training"] for node in norms)


def test_dropout_becomes_a_mask_and_vanishes_in_inference() -> None:
    def build(input: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(12, classes))

    model = Model(name="d", title="d", task="t", input=(3, 2, 2), classes=4, build=build)
    engine = Torch()
    data = registry.load("data", "synthetic").open(Request(fields=model.fields(), batch=2, seed=0)).batch()
    engine.load(Spec(model="d", batch=2), model, data)
    graph, _ = engine.capture()
    assert graph.masks == {"1/mask": 0.25} and graph.values["1/mask"].shape == (2, 12)


def test_an_unknown_operation_is_named_with_its_layer() -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(x).abs()

    module = nn.Sequential(nn.Linear(4, 4), Odd())
    with pytest.raises(UnavailableError, match=r"fft_rfft.*layer '1'"):
        capture(module, [torch.randn(2, 4)], ["x"])


def test_a_network_that_torch_cannot_export_is_refused_in_one_sentence() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnavailableError, match=r"torch\.export cannot take this network") as caught:
        capture(Branch(), [torch.randn(2, 4)], ["x"])
    assert "\n" not in str(caught.value)


def test_a_layer_used_twice_updates_its_statistics_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(3)
            self.head = nn.Linear(12, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.norm(self.norm(x) * 2).flatten(1))

    module = Twice().double()
    x, y = torch.randn(5, 3, 2, 2), torch.tensor([0, 1, 2, 3, 0])
    graph, arrays = capture(Twice(), [x, y], ["x", "y"], loss=cross_entropy)
    state = doubled(graph, arrays) | {key: tensor.detach().clone() for key, tensor in module.state_dict().items()}
    found = run(graph, state, [x.double(), y])
    cross_entropy(module, None, (x.double(), y))
    torch.testing.assert_close(found[graph.updates["norm.running_var"]], module.norm.running_var)
    torch.testing.assert_close(found[graph.updates["norm.running_mean"]], module.norm.running_mean)


def test_a_loss_that_stops_a_gradient_of_its_own_network_is_refused() -> None:
    def loss(module: Any, companion: Any, batch: tuple[Any, ...]) -> Any:
        with torch.no_grad():
            target = module(batch[0]).relu()
        return (module(batch[0]) - target).square().mean()

    with pytest.raises(UnavailableError, match="stops a gradient"):
        capture(nn.Linear(4, 4), [torch.randn(2, 4)], ["x"], loss=loss)
