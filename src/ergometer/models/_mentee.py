"""The layers of the Mentee network, for every model that trains it."""

from typing import TYPE_CHECKING

from ergometer.models._layers import chain, small

if TYPE_CHECKING:
    from torch import nn

SMALLEST = 32


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    """Five 3x3 convolutions, each with a ReLU and a 2x2 pool, and three fully connected layers."""
    from torch import nn

    channels, height, width = input
    layers: dict[str, nn.Module] = {}
    # torch's own weights: larger ones overshoot in the first step (batch 1, learning rate 0.01).
    for number, outputs in enumerate((64, 128, 256, 512, 512), 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, outputs, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        channels = outputs
    layers |= {
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(channels * (height // 32) * (width // 32), 4096),
        "relu6": nn.ReLU(),
        "fc7": nn.Linear(4096, 4096),
        "relu7": nn.ReLU(),
        "fc8": small(nn.Linear(4096, classes)),
    }
    return chain(layers)
