"""Mentee taught by a larger mentor (SEC19's purpose for it), by softened scores as in Hinton et al. 2015."""

from typing import TYPE_CHECKING, Any

from ergometer.core.model import Model, Pass
from ergometer.models import _vgg
from ergometer.models._mentee import SMALLEST
from ergometer.models._mentee import build as build_mentee

if TYPE_CHECKING:
    from torch import nn

_TEMPERATURE = 4.0
_REPEATS = {"vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4)}


def build(input: tuple[int, ...], classes: int, mentor: str) -> "nn.Module":
    return build_mentee(input, classes)


def build_mentor(input: tuple[int, ...], classes: int, mentor: str) -> "nn.Module":
    return _vgg.build(input, classes, _REPEATS[mentor])


def loss(module: Any, companion: Any, batch: tuple[Any, ...]) -> Any:
    """Half of it from the labels, half from the mentor's softened scores."""
    import torch
    from torch.nn import functional

    image, label = batch
    scores = module(image)
    with torch.no_grad():
        taught = functional.log_softmax(companion(image) / _TEMPERATURE, -1)
    soft = functional.log_softmax(scores / _TEMPERATURE, -1)
    divergence = functional.kl_div(soft, taught, log_target=True, reduction="batchmean") * _TEMPERATURE**2
    return (functional.cross_entropy(scores, label) + divergence) / 2


MODEL = Model(
    name="mentee_distilled",
    title="Mentee under a VGG mentor (distillation)",
    task="image classification",
    input=(3, 32, 32),
    classes=10,
    build=build,
    parameters=22_834_314,
    macs=86_745_088,
    smallest=SMALLEST,
    options={"mentor": tuple(_REPEATS)},
    passes=(Pass(name="", loss=loss),),
    companion=build_mentor,
    papers={"SEC19": "named as the network's purpose; not measured"},
)
