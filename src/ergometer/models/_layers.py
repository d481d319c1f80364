"""Layers as the networks of this folder start them, and ways to put layers together."""

from collections import OrderedDict
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import nn

    Layer = TypeVar("Layer", nn.Conv2d, nn.Linear)


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = True,
) -> "nn.Conv2d":
    """A convolution with Kaiming weights; padded to keep the size if not told otherwise.

    Their variance lacks the factor of 2 for a ReLU, because each max pool makes up for it: with the factor, deep
    networks without batch normalization overshoot in their first step (batch 1, learning rate 0.01).
    """
    from torch import nn

    padding = kernel // 2 if padding is None else padding
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=bias)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def normalized(
    name: str,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    scale: float = 1,
) -> "dict[str, nn.Module]":
    """A convolution without bias, and its batch normalization, whose outputs start at that scale."""
    from torch import nn

    layer = convolution(inputs, outputs, kernel, stride, padding, groups, bias=False)
    norm = nn.BatchNorm2d(outputs)
    nn.init.constant_(norm.weight, scale)
    return {name: layer, f"{name}_bn": norm}


def small(layer: "Layer") -> "Layer":
    """The layer with small weights: as the last one, it gives all classes about the same score at first."""
    from torch import nn

    nn.init.normal_(layer.weight, std=0.01)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def chain(layers: "Mapping[str, nn.Module]") -> "nn.Sequential":
    """The layers one after another."""
    from torch import nn

    return nn.Sequential(OrderedDict(layers))


def branches(join: str, layers: "Mapping[str, nn.Module]") -> "nn.Module":
    """The layers side by side on the same input, their outputs added (join "add") or stacked ("concatenate")."""
    import torch
    from torch import nn

    class Branches(nn.ModuleDict):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs = [layer(x) for layer in self.values()]
            return torch.cat(outputs, 1) if join == "concatenate" else reduce(torch.add, outputs)

    return Branches(layers)
