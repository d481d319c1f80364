"""Every network of the suite: builds, has the parameters and multiply-accumulates it should, and learns."""

import pytest
import torch
from torch import nn

from ergometer.core import registry
from ergometer.core.model import Model
from ergometer.core.spec import Spec
from ergometer.engines.torch import ENGINE
from ergometer.run.learning import check_learning

MODELS: dict[str, Model] = registry.load_all("models")
# True counts of the papers' own code (LeNet, SqueezeNet with 10 classes, MobileNetV2 with 1001).
PARAMETERS = {"lenet": 349_980, "squeezenet": 740_554, "mobilenet_v2": 3_506_153}
SMALL = {"lenet": (1, 28, 28), "squeezenet": (3, 48, 48), "mobilenet_v2": (3, 64, 64)}


def loaded(name: str, batch: int = 2, mode: str = "train", shape: tuple[int, ...] | None = None):  # type: ignore[no-untyped-def]
    model = MODELS[name]
    shape = shape or SMALL[name]
    data = registry.load("data", "synthetic").batch(shape, model.classes, batch, 0)
    engine = ENGINE()
    engine.load(Spec(model=name, batch=batch, mode=mode, threads=1, input=shape), model, data)
    return engine


def independent_macs(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """Forward and backward multiply-accumulates of one sample, from the shapes of the layers alone."""
    forward, first = [], []

    def hook(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            kernel = layer.kernel_size[0] * layer.kernel_size[1] * layer.in_channels // layer.groups
            forward.append(output.numel() * kernel)
        elif isinstance(layer, nn.Linear):
            forward.append(output.numel() * layer.in_features)
        if forward and not first:
            first.append(forward[0])

    handles = [layer.register_forward_hook(hook) for layer in module.modules()]
    module.eval()(torch.zeros(1, *shape))
    for handle in handles:
        handle.remove()
    # Each layer's filter and input gradient cost what its forward costs; the first needs no input gradient.
    return sum(forward), 2 * sum(forward) - first[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_describes_itself(name: str) -> None:
    model = MODELS[name]
    assert model.name == name
    assert model.title and model.task and model.papers


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_output(name: str) -> None:
    model = MODELS[name]
    module = model.build(model.classes).eval()
    assert sum(p.numel() for p in module.parameters()) == PARAMETERS[name]
    assert module(torch.zeros(2, *model.input)).shape == (2, model.classes)
    assert model.build(7).eval()(torch.zeros(1, *model.input)).shape == (1, 7)


@pytest.mark.parametrize("name", MODELS)
def test_counts_agree_with_an_independent_count(name: str) -> None:
    engine = loaded(name, batch=3, shape=MODELS[name].input)
    counts = engine.counts()
    forward, backward = independent_macs(engine.module, MODELS[name].input)
    assert counts.parameters == PARAMETERS[name]
    assert counts.macs_forward == 3 * forward
    assert counts.macs_backward == 3 * backward
    assert counts.bytes_forward > 4 * counts.parameters


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", [1, 2])
def test_it_learns(name: str, batch: int) -> None:
    outcome = check_learning(loaded(name, batch))
    assert outcome["ok"], outcome["reason"]


@pytest.mark.parametrize("name", MODELS)
def test_the_same_seed_gives_the_same_losses(name: str) -> None:
    assert loaded(name).learn(3).losses == loaded(name).learn(3).losses


@pytest.mark.parametrize("name", MODELS)
def test_inference_counts_no_backward(name: str) -> None:
    engine = loaded(name, mode="infer")
    assert len(engine.step().marks) == 2
    counts = engine.counts()
    assert counts.macs_backward == 0
    assert counts.macs_forward == loaded(name).counts().macs_forward
