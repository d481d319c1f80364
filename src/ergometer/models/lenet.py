"""LeNet as EMDL21's authors wrote it: two 5x5 convolutions and two fully connected layers."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._emdl21 import mate30
from ergometer.models._layers import chain

if TYPE_CHECKING:
    from torch import nn


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn

    channels, height, width = input
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
    return chain(
        {
            "conv1": nn.Conv2d(channels, 20, 5),
            "relu1": nn.ReLU(),
            "pool1": nn.MaxPool2d(2),
            "conv2": nn.Conv2d(20, 50, 5),
            "relu2": nn.ReLU(),
            "pool2": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(50 * rows * columns, 400),
            "relu3": nn.ReLU(),
            "fc2": nn.Linear(400, classes),
        }
    )


MODEL = Model(
    name="lenet",
    title="LeNet (conv 20-50, fc 400)",
    task="image classification",
    input=(1, 28, 28),
    classes=10,
    build=build,
    parameters=349_980,
    macs=2_212_000,
    smallest=16,
    papers={"EMDL21": "3.2K parameters stated; its authors' code has 349,980"},
    published=mate30(
        train_ms=(7.7, 9, 9.4, 10.8, 14.5, 23, 39.5, 73),
        infer_ms=(1.3, 0.4, 1.1, 1.1, 1.9, 3.8, 7.3, 15.5),
        memory_mb=(67, 67, 69, 74, 80, 98),
    ),
)
