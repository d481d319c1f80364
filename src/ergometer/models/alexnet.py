"""AlexNet (Krizhevsky et al. 2012): as Caffe's BVLC model, or as EMDL21's authors wrote it."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._emdl21 import mate30
from ergometer.models._layers import chain, small

if TYPE_CHECKING:
    from torch import nn


def _last_side(side: int, caffe: bool) -> int:
    """Height or width after the first convolution and the three pools."""
    side = (side - 11) // 4 + 1
    for _ in range(3):
        side = (side - 3 + caffe) // 2 + 1
    return side


def build(input: tuple[int, ...], classes: int, variant: str = "caffe") -> "nn.Module":
    from torch import nn

    caffe = variant == "caffe"
    groups = 2 if caffe else 1
    channels, height, width = input

    def norm(name: str) -> dict[str, nn.Module]:
        return {name: nn.LocalResponseNorm(5)} if caffe else {}

    def dropout(name: str) -> dict[str, nn.Module]:
        return {name: nn.Dropout(0.5)} if caffe else {}

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, stride=2, ceil_mode=caffe)

    # torch's own weights: larger ones overshoot in the first step (batch 1, learning rate 0.01).
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(channels, 96, 11, stride=4),
        "relu1": nn.ReLU(),
        **norm("norm1"),
        "pool1": pool(),
        "conv2": nn.Conv2d(96, 256, 5, padding=2, groups=groups),
        "relu2": nn.ReLU(),
        **norm("norm2"),
        "pool2": pool(),
        "conv3": nn.Conv2d(256, 384, 3, padding=1),
        "relu3": nn.ReLU(),
        "conv4": nn.Conv2d(384, 384, 3, padding=1, groups=groups),
        "relu4": nn.ReLU(),
        "conv5": nn.Conv2d(384, 256, 3, padding=1, groups=groups),
        "relu5": nn.ReLU(),
        "pool5": pool(),
        "flatten": nn.Flatten(),
        "fc6": nn.Linear(256 * _last_side(height, caffe) * _last_side(width, caffe), 4096),
        "relu6": nn.ReLU(),
        **dropout("dropout6"),
    }
    if caffe:
        layers |= {"fc7": nn.Linear(4096, 4096), "relu7": nn.ReLU(), **dropout("dropout7")}
    return chain(layers | {"fc8" if caffe else "fc7": small(nn.Linear(4096, classes))})


MODEL = Model(
    name="alexnet",
    title="AlexNet",
    task="image classification",
    input=(3, 227, 227),
    classes=1000,
    build=build,
    parameters=60_965_224,
    macs=724_406_816,
    smallest=67,
    options={"variant": ("caffe", "emdl21")},
    papers={
        "TX2": "60M parameters, 727M flops (multiply-accumulates); CIFAR-10, whose 32x32 it cannot take",
        "EMDL21": "61M parameters stated; its authors' code has 30,006,666 (variant=emdl21, 3x224x224, 10 classes)",
        "IC2E18": "233 MB file; 224x224 input stated, 227x227 used",
    },
    published=mate30(
        train_ms=(522.7, 666.5, 833.6, 1238.8, 2098.1, 5646.1),
        infer_ms=(14.2, 46.6, 65.6, 111.8, 203.5, 357.7),
        memory_mb=(808, 751, 664, 835, 1331, 2560),
        options="variant=emdl21",
        input=(3, 224, 224),
    ),
)
