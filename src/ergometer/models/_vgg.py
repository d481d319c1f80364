"""VGG (Simonyan and Zisserman 2015): 3x3 convolutions in five stages, and three fully connected layers."""

from typing import TYPE_CHECKING

from ergometer.models._layers import chain, convolution, small

if TYPE_CHECKING:
    from torch import nn

SMALLEST = 32


def build(input: tuple[int, ...], classes: int, repeats: tuple[int, ...]) -> "nn.Module":
    """Five stages of so many convolutions each."""
    from torch import nn

    channels, height, width = input
    layers: dict[str, nn.Module] = {}
    for stage, (outputs, repeat) in enumerate(zip((64, 128, 256, 512, 512), repeats, strict=True), 1):
        for number in range(1, repeat + 1):
            layers[f"conv{stage}_{number}"] = convolution(channels, outputs, 3)
            layers[f"relu{stage}_{number}"] = nn.ReLU()
            channels = outputs
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
    layers |= {
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(channels * (height // 32) * (width // 32), 4096),
        "relu6": nn.ReLU(),
        "dropout6": nn.Dropout(0.5),
        "fc7": nn.Linear(4096, 4096),
        "relu7": nn.ReLU(),
        "dropout7": nn.Dropout(0.5),
        "fc8": small(nn.Linear(4096, classes)),
    }
    return chain(layers)
