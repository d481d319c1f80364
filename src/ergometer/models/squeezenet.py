"""SqueezeNet 1.0 (Iandola et al. 2016): fire modules, no fully connected layer."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._emdl21 import mate30
from ergometer.models._layers import branches, chain, convolution, small

if TYPE_CHECKING:
    from torch import nn


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn

    def fire(inputs: int, squeeze: int, expand: int) -> nn.Module:
        expansion = {"1x1": convolution(squeeze, expand, 1), "3x3": convolution(squeeze, expand, 3)}
        return chain(
            {
                "squeeze": convolution(inputs, squeeze, 1),
                "squeeze_relu": nn.ReLU(),
                "expand": branches("concatenate", expansion),
                "expand_relu": nn.ReLU(),
            }
        )

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, stride=2, ceil_mode=True)

    return chain(
        {
            "conv1": convolution(input[0], 96, 7, stride=2, padding=0),
            "relu1": nn.ReLU(),
            "pool1": pool(),
            "fire2": fire(96, 16, 64),
            "fire3": fire(128, 16, 64),
            "fire4": fire(128, 32, 128),
            "pool4": pool(),
            "fire5": fire(256, 32, 128),
            "fire6": fire(256, 48, 192),
            "fire7": fire(384, 48, 192),
            "fire8": fire(384, 64, 256),
            "pool8": pool(),
            "fire9": fire(512, 64, 256),
            "dropout": nn.Dropout(0.5),
            # No ReLU after the last convolution: with one, a dead class never learns again.
            "conv10": small(nn.Conv2d(512, classes, 1)),
            "pool10": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
        }
    )


MODEL = Model(
    name="squeezenet",
    title="SqueezeNet 1.0",
    task="image classification",
    input=(3, 224, 224),
    classes=10,
    build=build,
    parameters=740_554,
    macs=733_261_856,
    smallest=32,
    papers={
        "EMDL21": "411.2K parameters stated; its authors' code has 740,554",
        "TX2": "5M parameters stated, which is the file's size in MB with 1000 classes (1,248,424 parameters)",
        "IC2E18": "4.8 MB file, 227x227 input",
    },
    published=mate30(
        train_ms=(166.5, 330.4, 633.2, 1816.5, 3540.9, 9187.9),
        infer_ms=(11.7, 23, 127.3, 254.1, 209.2, 586.8),
        memory_mb=(199, 332, 746, 1331, 2662, 5222),
    ),
)
