"""LeNet as EMDL21's authors wrote it: two 5x5 convolutions and two fully connected layers."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model

if TYPE_CHECKING:
    from torch import nn


def build(classes: int) -> "nn.Module":
    from torch import nn

    return nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(800, 400), nn.ReLU(),
        nn.Linear(400, classes),
    )  # fmt: skip


MODEL = Model(
    name="lenet",
    title="LeNet (conv 20-50, fc 400)",
    task="image classification",
    input=(1, 28, 28),
    classes=10,
    build=build,
    papers={"EMDL21": "3.2K parameters stated; its authors' code has 349,980"},
)
