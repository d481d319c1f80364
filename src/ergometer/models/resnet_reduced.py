"""The ResNet that SEC19 shrank to eight layers: WRN-10-10 (Zagoruyko and Komodakis 2016), or its table as printed."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._layers import branches, chain, convolution, small

if TYPE_CHECKING:
    from torch import nn


def build(input: tuple[int, ...], classes: int, variant: str = "wrn") -> "nn.Module":
    from torch import nn

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        body = {
            "conv1": convolution(inputs, outputs, 3, stride, bias=False),
            "bn2": nn.BatchNorm2d(outputs),
            "relu2": nn.ReLU(),
            "conv2": convolution(outputs, outputs, 3, bias=False),
        }
        shortcut = convolution(inputs, outputs, 1, stride, bias=False)
        return chain(
            {
                "bn1": nn.BatchNorm2d(inputs),
                "relu1": nn.ReLU(),
                "add": branches("add", {"body": chain(body), "shortcut": shortcut}),
            }
        )

    layers: dict[str, nn.Module] = {"conv1": convolution(input[0], 16, 3, bias=False)}
    if variant == "wrn":
        layers |= {
            "block2": block(16, 160, 1),
            "block3": block(160, 320, 2),
            "block4": block(320, 640, 2),
            "bn5": nn.BatchNorm2d(640),
            "relu5": nn.ReLU(),
        }
    else:
        layers["relu1"] = nn.ReLU()
        widths = (16, 160, 320, 320, 640, 640)
        # The table names no strides: these lead to the 8x8 map that its pool expects.
        for number, stride in enumerate((1, 2, 1, 2, 1), 2):
            layers[f"conv{number}"] = convolution(widths[number - 2], widths[number - 1], 3, stride, bias=False)
            layers[f"relu{number}"] = nn.ReLU()
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": small(nn.Linear(640, classes))}
    return chain(layers)


MODEL = Model(
    name="resnet_reduced",
    title="Reduced ResNet",
    task="image classification",
    input=(3, 32, 32),
    classes=10,
    build=build,
    parameters=7_435_354,
    macs=996_595_968,
    smallest=5,
    options={"variant": ("wrn", "literal")},
    papers={"SEC19": "no count stated; its table leaves a layer out: WRN-10-10 fits best, as printed 6,941,882"},
)
