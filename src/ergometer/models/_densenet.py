"""DenseNet for small images (Huang et al. 2017), without bottlenecks or compression."""

from typing import TYPE_CHECKING

from ergometer.models._layers import branches, chain, convolution, small

if TYPE_CHECKING:
    from torch import nn

# Two pools: below this, the last map is a single value, which batch normalization cannot train on alone.
SMALLEST = 8


def build(input: tuple[int, ...], classes: int, depth: int, growth: int) -> "nn.Module":
    """Three dense blocks with two transitions between them; every layer adds `growth` channels."""
    from torch import nn

    def activated(inputs: int, outputs: int, kernel: int) -> dict[str, nn.Module]:
        layer = convolution(inputs, outputs, kernel, bias=False)
        return {"bn": nn.BatchNorm2d(inputs), "relu": nn.ReLU(), "conv": layer}

    channels = 16
    layers: dict[str, nn.Module] = {"conv1": convolution(input[0], channels, 3, bias=False)}
    for block in (1, 2, 3):
        for number in range(1, (depth - 4) // 3 + 1):
            new = chain(activated(channels, growth, 3))
            layers[f"block{block}_{number}"] = branches("concatenate", {"old": nn.Identity(), "new": new})
            channels += growth
        if block < 3:
            layers[f"transition{block}"] = chain(activated(channels, channels, 1) | {"pool": nn.AvgPool2d(2)})
    layers |= {
        "bn": nn.BatchNorm2d(channels),
        "relu": nn.ReLU(),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "fc": small(nn.Linear(channels, classes)),
    }
    return chain(layers)
