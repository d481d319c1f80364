"""SEC19's depthwise separable network: 3x3 depthwise and 1x1 pointwise convolutions of one width."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._layers import chain
from ergometer.models._only import OPTIONS, layout, mean_scores

if TYPE_CHECKING:
    from torch import nn


def build(input: tuple[int, ...], classes: int, width: int = 64, depth: int = 1) -> "nn.Module":
    from torch import nn

    inputs = input[0]
    layers: dict[str, nn.Module] = {}
    for number in range(1, depth + 1):
        layers[f"depthwise{number}"] = nn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs)
        layers[f"pointwise{number}"] = nn.Conv2d(inputs, width, 1)
        inputs = width
    return chain(layers | mean_scores())


MODEL = Model(
    name="dwconv_only",
    title="Depthwise separable convolutions only",
    task="image classification",
    input=(3, 32, 32),
    classes=0,
    build=build,
    parameters=286,
    macs=224_256,
    options=OPTIONS,
    layout=layout,
    papers={"SEC19": "no count stated"},
)
