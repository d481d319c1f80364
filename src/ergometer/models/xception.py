"""Xception (Chollet 2017) as Keras lays it out: depthwise separable convolutions with shortcuts."""

from itertools import pairwise
from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._layers import branches, chain, convolution, normalized, small

if TYPE_CHECKING:
    from torch import nn


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn

    def separable(name: str, inputs: int, outputs: int, scale: float = 1) -> dict[str, nn.Module]:
        depthwise = convolution(inputs, inputs, 3, groups=inputs, bias=False)
        return {f"{name}_depthwise": depthwise, **normalized(f"{name}_pointwise", inputs, outputs, 1, scale=scale)}

    def block(*channels: int, first_relu: bool = True, shrink: bool = True) -> nn.Module:
        """A separable convolution between each two of the channels, beside a shortcut."""
        body: dict[str, nn.Module] = {}
        for number, (inputs, outputs) in enumerate(pairwise(channels), 1):
            if number > 1 or first_relu:
                body[f"relu{number}"] = nn.ReLU()
            body |= separable(f"conv{number}", inputs, outputs)
        shortcut: nn.Module = nn.Identity()
        if shrink:
            body["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
            shortcut = chain(normalized("conv", channels[0], channels[-1], 1, stride=2))
        return branches("add", {"body": chain(body), "shortcut": shortcut})

    return chain(
        {
            **normalized("conv1_1", input[0], 32, 3, stride=2, padding=0),
            "relu1_1": nn.ReLU(),
            **normalized("conv1_2", 32, 64, 3, padding=0),
            "relu1_2": nn.ReLU(),
            "block2": block(64, 128, 128, first_relu=False),
            "block3": block(128, 256, 256),
            "block4": block(256, 728, 728),
            **{f"block{number}": block(728, 728, 728, 728, shrink=False) for number in range(5, 13)},
            "block13": block(728, 728, 1024),
            **separable("conv14_1", 1024, 1536),
            "relu14_1": nn.ReLU(),
            # At full scale the fully connected layer overshoots in the first step (batch 1, learning rate 0.01).
            **separable("conv14_2", 1536, 2048, scale=0.25),
            "relu14_2": nn.ReLU(),
            "pool": nn.AdaptiveAvgPool2d(1),
            "flatten": nn.Flatten(),
            "fc": small(nn.Linear(2048, classes)),
        }
    )


MODEL = Model(
    name="xception",
    title="Xception",
    task="image classification",
    input=(3, 299, 299),
    classes=1000,
    build=build,
    parameters=22_855_952,
    macs=8_357_403_496,
    smallest=32,
    alone=39,
    papers={"TX2": "23M parameters; 39 layers stated (36 convolutions)"},
)
