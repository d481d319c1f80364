"""SqueezeNet 1.0 (Iandola et al. 2016): fire modules, no fully connected layer."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from ergometer.core.model import Model

if TYPE_CHECKING:
    from torch import nn


def build(classes: int) -> "nn.Module":
    import torch
    from torch import nn

    class Fire(nn.Module):
        def __init__(self, channels: int, squeeze: int, expand: int):
            super().__init__()
            self.squeeze = nn.Conv2d(channels, squeeze, 1)
            self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
            self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)
            self.relu = nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.relu(self.squeeze(x))
            return torch.cat([self.relu(self.expand1x1(x)), self.relu(self.expand3x3(x))], 1)

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, stride=2, ceil_mode=True)

    layers = {
        "conv1": nn.Conv2d(3, 96, 7, stride=2),
        "relu1": nn.ReLU(),
        "pool1": pool(),
        "fire2": Fire(96, 16, 64),
        "fire3": Fire(128, 16, 64),
        "fire4": Fire(128, 32, 128),
        "pool4": pool(),
        "fire5": Fire(256, 32, 128),
        "fire6": Fire(256, 48, 192),
        "fire7": Fire(384, 48, 192),
        "fire8": Fire(384, 64, 256),
        "pool8": pool(),
        "fire9": Fire(512, 64, 256),
        "dropout": nn.Dropout(0.5),
    }
    last = nn.Conv2d(512, classes, 1)
    nn.init.normal_(last.weight, std=0.01)
    nn.init.zeros_(last.bias)  # type: ignore[arg-type]
    # No ReLU after the last convolution: with one, a dead class never learns again.
    layers |= {"conv10": last, "pool10": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(OrderedDict(layers))


MODEL = Model(
    name="squeezenet",
    title="SqueezeNet 1.0",
    task="image classification",
    input=(3, 224, 224),
    classes=10,
    build=build,
    smallest=32,
    papers={
        "EMDL21": "411.2K parameters stated; its authors' code has 740,554",
        "TX2": "5M parameters stated, which is the file's size in MB; 740,554 with 10 classes",
        "IC2E18": "4.8 MB file, 227x227 input",
    },
)
