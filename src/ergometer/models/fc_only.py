"""SEC19's fully connected network: layers of one width, with nothing between them."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._layers import chain
from ergometer.models._only import OPTIONS, layout

if TYPE_CHECKING:
    from torch import nn


def build(input: tuple[int, ...], classes: int, width: int = 64, depth: int = 1) -> "nn.Module":
    from torch import nn

    channels, rows, columns = input
    inputs = channels * rows * columns
    layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
    for number in range(1, depth + 1):
        layers[f"fc{number}"] = nn.Linear(inputs, width)
        inputs = width
    return chain(layers)


MODEL = Model(
    name="fc_only",
    title="Fully connected layers only",
    task="image classification",
    input=(3, 32, 32),
    classes=0,
    build=build,
    parameters=196_672,
    macs=196_608,
    options=OPTIONS,
    layout=layout,
    papers={"SEC19": "196K parameters; 15.1G flops a step of batch 128 stated, a hundred times too many"},
)
