"""Every network of the suite: builds, has the parameters and multiply-accumulates it should, learns, and runs."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.model import Model
from ergometer.core.spec import Spec
from ergometer.engines.torch import ENGINE
from ergometer.engines.torch.engine import Torch
from ergometer.run.learning import check_learning
from ergometer.run.resolve import of_suite

MODELS: dict[str, Model] = registry.load_all("models")
# The deepest take their time elsewhere.
PATIENT = [
    pytest.param(name, marks=pytest.mark.slow) if name in ("resnet101", "resnet152") else name for name in MODELS
]

# True counts, from the papers' own code or computed from their tables: (model, input, classes, parameters).
TRUE_PARAMETERS = [
    ("mentee", None, 10, 22_834_314),
    ("mentee", None, 1000, 26_890_344),
    ("mobilenet_reduced", None, None, 2_755_690),
    ("mobilenet_reduced:stride=2", None, None, 175_210),
    ("resnet_reduced", None, None, 7_435_354),
    ("resnet_reduced:variant=literal", None, None, 6_941_882),
    ("conv_only:width=128,depth=2", None, None, 151_168),
    ("conv_only:width=512,depth=2", None, None, 2_374_144),
    ("conv_only:width=512,depth=8", None, None, 16_532_992),
    ("densenet40_12", None, None, 1_019_722),
    ("densenet100_12", None, None, 6_979_642),
    ("resnet50", None, 1000, 25_557_032),
    ("resnet50", None, 10, 23_528_522),
    ("resnet101", None, 1000, 44_549_160),
    ("resnet152", None, 1000, 60_192_808),
    ("resnet152", None, 10, 58_164_298),
    ("squeezenet", None, 10, 740_554),
    ("squeezenet", None, 1000, 1_248_424),
    ("vgg16", (3, 224, 224), 10, 134_301_514),
    ("vgg16", (3, 32, 32), 10, 33_638_218),
    ("vgg19", (3, 224, 224), 1000, 143_667_240),
    ("xception", None, 1000, 22_855_952),
    ("inception_v1", None, 1000, 6_998_552),
    ("alexnet", (3, 227, 227), 1000, 60_965_224),
    ("alexnet:variant=emdl21", (3, 224, 224), 10, 30_006_666),
    ("dqn", None, 4, 1_686_180),
    ("lenet", None, 10, 349_980),
    ("mobilenet_v2", None, 1001, 3_506_153),
    ("googlenet", None, 10, 5_979_642),
    ("nin", None, 1000, 7_595_176),
    ("bert", None, None, 108_893_186),
]
# What the corrected tables say of operations, to the digits that they give: (model, input, classes, MACs).
TRUE_MACS = [
    ("densenet40_12", None, None, 265e6),
    ("densenet100_12", None, None, 1.77e9),
    ("resnet50", (3, 224, 224), None, 4.09e9),
    ("resnet50", (3, 32, 32), 10, 83e6),
    ("resnet101", None, None, 7.80e9),
    ("resnet152", None, None, 11.5e9),
    ("vgg16", (3, 224, 224), None, 15.47e9),
    ("vgg16", (3, 32, 32), None, 0.33e9),
    ("vgg19", None, None, 19.63e9),
    ("xception", (3, 299, 299), None, 8.4e9),
    ("inception_v1", (3, 224, 224), None, 1.58e9),
    ("googlenet", None, None, 1569e6),
    ("alexnet", (3, 227, 227), None, 724e6),
    ("alexnet:variant=emdl21", (3, 224, 224), 10, 989e6),
    ("lenet", None, None, 2.2e6),
    ("mobilenet_v2", None, None, 301e6),
]
SMALL = {"bert": "bert:size=small", "seq2seq": "seq2seq:width=64"}


def small(name: str) -> Model:
    """The network at the smallest size that it takes, or nearly so."""
    model = MODELS[name]
    if len(model.input) == 1:
        shape: tuple[int, ...] = (max(8, model.smallest),)
    elif model.refuse is not None:
        shape = (model.input[0], 16, 16)
    else:
        side = max(model.smallest, model.alone, 16)
        shape = (model.input[0], side, side)
    return of_suite(SMALL.get(name, name), shape, None)


def loaded(model: Model, batch: int = 2, mode: str = "train", seed: int = 0) -> Torch:
    stream = registry.load("data", "synthetic").open(Request(fields=model.fields(), batch=batch, seed=seed))
    engine: Torch = ENGINE()
    engine.load(Spec(model=model.name, batch=batch, mode=mode, threads=1, seed=seed), model, stream.batch())
    return engine


class IndependentCount:
    """Multiply-accumulates from the shapes that layers see alone, without looking at what runs below them."""

    def __init__(self, trained: set[int]):
        self.forward = self.backward = 0
        self.trained = trained

    def watch(self, module: nn.Module) -> None:
        for layer in module.modules():
            layer.register_forward_hook(self._hook)

    def _hook(self, layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: Any) -> None:
        if isinstance(layer, nn.LSTM):
            macs = inputs[0].shape[:2].numel() * sum(p.numel() for p in layer.parameters() if p.ndim == 2)
        elif isinstance(layer, nn.ConvTranspose2d):
            macs = inputs[0].numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Conv1d | nn.Conv2d):
            macs = output.numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Linear):
            macs = output.numel() * layer.in_features
        elif type(layer).__name__ == "Attention":
            # scores and their mixture: every position meets every other twice, over the whole width
            macs = 2 * inputs[0].shape[:2].numel() * inputs[0].shape[1] * inputs[0].shape[2]
        elif type(layer).__name__ == "Seq2seq":
            macs = 2 * inputs[0].shape.numel() * inputs[1].shape[1] * layer.score.in_features
        else:
            return
        self.forward += macs
        if torch.is_grad_enabled():
            whole = isinstance(layer, nn.LSTM) or not hasattr(layer, "weight")  # both gradients, always
            self.backward += macs * (whole or id(layer.weight) in self.trained)
            self.backward += macs * (whole or inputs[0].requires_grad)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_describes_itself(name: str) -> None:
    model = MODELS[name]
    assert model.name == name
    assert model.title and model.task and model.papers and model.parameters and model.macs
    assert not model.takes_what(model.input)
    assert model.data in registry.names("data")


@pytest.mark.parametrize("name", MODELS)
def test_the_declared_counts_are_those_of_the_network(name: str) -> None:
    model = of_suite(name, None, None)
    layers = ENGINE().layers_of(model)
    assert sum(layer.parameters for layer in layers) == model.parameters
    assert sum(layer.macs for layer in layers) == model.macs
    with torch.device("meta"):
        module = model.make().eval()
        inputs = [
            torch.empty((1, *item.shape), dtype=torch.float32 if item.high is None else torch.int64)
            for item in model.fields()
            if item.name in (model.feeds or [field.name for field in model.fields()][:-1])
        ]
    count = IndependentCount(set())
    count.watch(module)
    module(*inputs)
    assert count.forward == model.macs
    assert sum(p.numel() for p in module.parameters()) == model.parameters


@pytest.mark.parametrize(("name", "shape", "classes", "parameters"), TRUE_PARAMETERS)
def test_parameters_equal_the_true_count(
    name: str, shape: tuple[int, ...] | None, classes: int | None, parameters: int
) -> None:
    with torch.device("meta"):
        module = of_suite(name, shape, classes).make()
    assert sum(p.numel() for p in module.parameters()) == parameters


@pytest.mark.parametrize(("name", "shape", "classes", "macs"), TRUE_MACS)
def test_macs_equal_the_corrected_tables(
    name: str, shape: tuple[int, ...] | None, classes: int | None, macs: float
) -> None:
    counted = sum(layer.macs for layer in ENGINE().layers_of(of_suite(name, shape, classes)))
    assert counted == pytest.approx(macs, rel=0.012)


@pytest.mark.parametrize("name", MODELS)
def test_counts_of_a_step_agree_with_an_independent_count(name: str) -> None:
    engine = loaded(small(name), batch=2)
    counts = engine.counts()
    forward = backward = 0
    for number in range(len(engine.passes)):
        count = IndependentCount({id(p) for p in engine.trained[number].values()})
        count.watch(engine.module)
        if engine.companion is not None:
            count.watch(engine.companion)
        engine.forward(number)
        forward, backward = forward + count.forward, backward + count.backward
        for layer in [*engine.module.modules(), *(engine.companion.modules() if engine.companion else ())]:
            layer._forward_hooks.clear()
    assert (counts.macs_forward, counts.macs_backward) == (forward, backward)
    assert counts.bytes_forward > 2 * counts.parameters


@pytest.mark.parametrize("name", ["lenet", "mobilenet_v2", "densenet40_12", "char_cnn", "bert", "resnet50"])
def test_activations_of_the_layers_are_those_of_a_step(name: str) -> None:
    model = small(name)
    engine = loaded(model, batch=8)
    engine.step()
    shown = sum(layer.activations for layer in engine.layers_of(model))
    assert 8 * shown == pytest.approx(engine.memory()[0].activations, rel=0.15)


@cache
def learnt(name: str, batch: int) -> dict[str, Any]:
    return check_learning(loaded(small(name), batch))


@pytest.mark.parametrize("name", PATIENT)
@pytest.mark.parametrize("batch", [1, 2])
def test_it_learns(name: str, batch: int) -> None:
    outcome = learnt(name, batch)
    assert outcome["ok"], outcome["reason"]


@pytest.mark.parametrize("name", PATIENT)
def test_the_same_seed_gives_the_same_losses(name: str) -> None:
    losses = loaded(small(name)).learn(3).losses
    assert list(losses) == learnt(name, 2)["losses"][:3]
    assert losses != loaded(small(name), seed=1).learn(3).losses


@pytest.mark.parametrize("name", MODELS)
def test_inference_gives_scores_and_no_backward(name: str) -> None:
    model = small(name)
    engine = loaded(model, mode="infer")
    assert len(engine.step().marks) == 2
    assert engine.counts().macs_backward == 0
    output = engine.forward()
    assert torch.isfinite(output).all()
    labels = model.fields()[-1]
    if model.task == "image generation":
        assert output.shape == (2, *model.input)
    elif model.task == "control":
        assert output.shape == (2, model.classes)
    else:
        assert output.shape == (2, *labels.shape, labels.high)


@pytest.mark.filterwarnings("ignore:The tensor attributes .*_flat_weights")  # torch's own, of its LSTM
@pytest.mark.parametrize("name", MODELS)
def test_it_can_be_exported(name: str) -> None:
    """Other engines take the network as an exported graph."""
    engine = loaded(small(name), mode="infer")
    program = torch.export.export(engine.module, engine.inputs)
    torch.testing.assert_close(program.module()(*engine.inputs), engine.forward(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].classes])
def test_classes_are_an_option(name: str) -> None:
    with torch.device("meta"):
        model = of_suite(name, None, 7)
    assert model.fields()[-1].high == 7 or model.task in ("question answering", "control")
    with torch.device("meta"):
        more, fewer = (sum(p.numel() for p in of_suite(name, None, n).make().parameters()) for n in (9, 7))
    assert more > fewer
