"""SqueezeNet 1.0 (Iandola et al. 2016): fire modules, no fully connected layer."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model, Published
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
    published=(
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="step_time",
            values={1: 0.1665, 2: 0.3304, 4: 0.6332, 8: 1.8165, 16: 3.5409, 32: 9.1879},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN (session)",
            mode="infer",
            metric="step_time",
            values={1: 0.0117, 2: 0.023, 4: 0.1273, 8: 0.2541, 16: 0.2092, 32: 0.5868},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="peak_memory",
            values={1: 1.99e8, 2: 3.32e8, 4: 7.46e8, 8: 1.331e9, 16: 2.662e9, 32: 5.222e9},
        ),
    ),
)
