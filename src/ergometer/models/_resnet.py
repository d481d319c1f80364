"""ResNet of bottleneck blocks (He et al. 2016), which shrink the image in their 3x3 convolution."""

from typing import TYPE_CHECKING

from ergometer.models._layers import branches, chain, normalized, small

if TYPE_CHECKING:
    from torch import nn

# It halves the image five times: at 32 the last map is a single value, which batch normalization cannot train on alone.
SMALLEST = 32
ALONE = 33


def build(input: tuple[int, ...], classes: int, blocks: tuple[int, ...]) -> "nn.Module":
    """Four stages of so many blocks each."""
    from torch import nn

    def bottleneck(inputs: int, hidden: int, stride: int, scale: float) -> nn.Module:
        body = {
            **normalized("conv1", inputs, hidden, 1),
            "relu1": nn.ReLU(),
            **normalized("conv2", hidden, hidden, 3, stride),
            "relu2": nn.ReLU(),
            **normalized("conv3", hidden, 4 * hidden, 1, scale=scale),
        }
        same = inputs == 4 * hidden
        shortcut = nn.Identity() if same else chain(normalized("conv", inputs, 4 * hidden, 1, stride, scale=scale))
        return chain({"add": branches("add", {"body": chain(body), "shortcut": shortcut}), "relu": nn.ReLU()})

    channels = 64
    layers = {
        **normalized("conv1", input[0], channels, 7, stride=2),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(3, stride=2, padding=1),
    }
    for stage, repeats in enumerate(blocks):
        hidden = 64 << stage
        # At full scale the fully connected layer overshoots in the first step (batch 1, learning rate 0.01).
        scale = 0.1 if stage == 3 else 1
        for repeat in range(repeats):
            stride = 2 if stage > 0 and repeat == 0 else 1
            layers[f"block{stage + 2}_{repeat + 1}"] = bottleneck(channels, hidden, stride, scale)
            channels = 4 * hidden
    layers |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": small(nn.Linear(channels, classes))}
    return chain(layers)
