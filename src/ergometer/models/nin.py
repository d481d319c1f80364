"""Network in Network (Lin et al. 2014) as Caffe's ImageNet model: 1x1 convolutions after each larger one."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._layers import chain, convolution, small

if TYPE_CHECKING:
    from torch import nn


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn

    def stage(number: int, inputs: int, outputs: int, kernel: int) -> dict[str, nn.Module]:
        first = convolution(inputs, outputs, kernel, 4, 0) if number == 1 else convolution(inputs, outputs, kernel)
        layers: dict[str, nn.Module] = {f"conv{number}": first, f"relu{number}": nn.ReLU()}
        for suffix in "ab":
            layers[f"conv{number}{suffix}"] = convolution(outputs, outputs, 1)
            layers[f"relu{number}{suffix}"] = nn.ReLU()
        return layers | {f"pool{number}": nn.MaxPool2d(3, stride=2, ceil_mode=True)}

    return chain(
        {
            **stage(1, input[0], 96, 11),
            **stage(2, 96, 256, 5),
            **stage(3, 256, 384, 3),
            "dropout": nn.Dropout(0.5),
            "conv4": convolution(384, 1024, 3),
            "relu4": nn.ReLU(),
            "conv4a": convolution(1024, 1024, 1),
            "relu4a": nn.ReLU(),
            # No ReLU after the last convolution: with one, a dead class never learns again.
            "conv4b": small(nn.Conv2d(1024, classes, 1)),
            "pool4": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
        }
    )


MODEL = Model(
    name="nin",
    title="Network in Network (Caffe, ImageNet)",
    task="image classification",
    input=(3, 227, 227),
    classes=1000,
    build=build,
    parameters=7_595_176,
    macs=1_105_996_320,
    smallest=39,
    papers={"IC2E18": "29 MB file, which is these parameters in MiB"},
)
