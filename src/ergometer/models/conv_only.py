"""SEC19's convolutional network: 3x3 convolutions of one width, with nothing between them."""

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
        layers[f"conv{number}"] = nn.Conv2d(inputs, width, 3, padding=1)
        inputs = width
    return chain(layers | mean_scores())


MODEL = Model(
    name="conv_only",
    title="Convolutions only",
    task="image classification",
    input=(3, 32, 32),
    classes=0,
    build=build,
    parameters=1_792,
    macs=1_769_472,
    options=OPTIONS,
    layout=layout,
    papers={
        "SEC19": "1.7K parameters; of others wrong: depth=2 width=128 15K (151,168), width=512 237M (2,374,144); "
        "depth=8 width=512 537M (16,532,992)"
    },
)
