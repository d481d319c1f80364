"""The MobileNet that SEC19 shrank to six layers: a convolution and five depthwise separable ones."""

import math
from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._layers import chain, convolution, normalized, small

if TYPE_CHECKING:
    from torch import nn

_OUTPUTS = (64, 128, 128, 256, 256)


def build(input: tuple[int, ...], classes: int, stride: str = "1") -> "nn.Module":
    from torch import nn

    channels, height, width = input
    # The paper's table names no strides. With "2", every second layer halves the image.
    strides = (2, 1, 2, 1, 2, 1) if stride == "2" else (1,) * 6
    shrink = 8 if stride == "2" else 1
    rows, columns = -(-height // shrink), -(-width // shrink)
    # The fully connected layer sums over all positions: at full scale it overshoots in the first step.
    scale = 1 / math.sqrt(rows * columns)
    # Its bias is superfluous before a batch normalization, but the count of 2,755,690 includes it.
    layers: dict[str, nn.Module] = {
        "conv1": convolution(channels, 32, 3, strides[0]),
        "conv1_bn": nn.BatchNorm2d(32),
        "relu1": nn.ReLU(),
    }
    channels = 32
    for number, (outputs, step) in enumerate(zip(_OUTPUTS, strides[1:], strict=True), 2):
        layers |= normalized(f"depthwise{number}", channels, channels, 3, step, groups=channels)
        layers[f"depthwise{number}_relu"] = nn.ReLU()
        layers |= normalized(f"pointwise{number}", channels, outputs, 1, scale=scale if number == 6 else 1)
        layers[f"pointwise{number}_relu"] = nn.ReLU()
        channels = outputs
    layers |= {
        "pool": nn.AvgPool2d(7, stride=1, padding=3, count_include_pad=False),
        "flatten": nn.Flatten(),
        "fc": small(nn.Linear(channels * rows * columns, classes)),
    }
    return chain(layers)


MODEL = Model(
    name="mobilenet_reduced",
    title="Reduced MobileNet",
    task="image classification",
    input=(3, 32, 32),
    classes=10,
    build=build,
    parameters=2_755_690,
    macs=137_035_776,
    smallest=9,
    options={"stride": ("1", "2")},
    papers={"SEC19": "5.48M parameters stated, which no reading of its table gives (stride=1 2,755,690; 2 175,210)"},
)
