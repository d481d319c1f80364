"""LeNet as EMDL21's authors wrote it: two 5x5 convolutions and two fully connected layers."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model, Published
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
    published=(
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="step_time",
            values={1: 0.0077, 2: 0.009, 4: 0.0094, 8: 0.0108, 16: 0.0145, 32: 0.023, 64: 0.0395, 128: 0.073},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN (session)",
            mode="infer",
            metric="step_time",
            values={1: 0.0013, 2: 0.0004, 4: 0.0011, 8: 0.0011, 16: 0.0019, 32: 0.0038, 64: 0.0073, 128: 0.0155},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="peak_memory",
            values={1: 6.7e7, 2: 6.7e7, 4: 6.9e7, 8: 7.4e7, 16: 8e7, 32: 9.8e7},
        ),
    ),
)
