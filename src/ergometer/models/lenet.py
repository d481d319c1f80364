"""LeNet as EMDL21's authors wrote it: two 5x5 convolutions and two fully connected layers."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from ergometer.core.model import Model

if TYPE_CHECKING:
    from torch import nn


def build(classes: int) -> "nn.Module":
    from torch import nn

    layers = {
        "conv1": nn.Conv2d(1, 20, 5),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": nn.Conv2d(20, 50, 5),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(800, 400),
        "relu3": nn.ReLU(),
        "fc2": nn.Linear(400, classes),
    }
    return nn.Sequential(OrderedDict(layers))


MODEL = Model(
    name="lenet",
    title="LeNet (conv 20-50, fc 400)",
    task="image classification",
    input=(1, 28, 28),
    classes=10,
    build=build,
    papers={"EMDL21": "3.2K parameters stated; its authors' code has 349,980"},
)
