"""GoogLeNet (Szegedy et al. 2015) as Caffe's BVLC model, without the auxiliary classifiers."""

from typing import TYPE_CHECKING

from ergometer.models._layers import branches, chain, convolution, small

if TYPE_CHECKING:
    from torch import nn

# 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; 1x1 after the pool
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def build(input: tuple[int, ...], classes: int, reduce: bool) -> "nn.Module":
    """reduce: with the 1x1 convolution before the second one."""
    from torch import nn

    def activated(name: str, inputs: int, outputs: int, kernel: int, stride: int = 1) -> dict[str, nn.Module]:
        return {name: convolution(inputs, outputs, kernel, stride), f"{name}_relu": nn.ReLU()}

    def inception(inputs: int, one: int, reduce3: int, three: int, reduce5: int, five: int, pool: int) -> nn.Module:
        return branches(
            "concatenate",
            {
                "1x1": chain(activated("conv", inputs, one, 1)),
                "3x3": chain(activated("reduce", inputs, reduce3, 1) | activated("conv", reduce3, three, 3)),
                "5x5": chain(activated("reduce", inputs, reduce5, 1) | activated("conv", reduce5, five, 5)),
                "pool": chain({"pool": nn.MaxPool2d(3, 1, 1), **activated("conv", inputs, pool, 1)}),
            },
        )

    def shrink() -> nn.Module:
        return nn.MaxPool2d(3, stride=2, ceil_mode=True)

    layers: dict[str, nn.Module] = {
        **activated("conv1", input[0], 64, 7, stride=2),
        "pool1": shrink(),
        "norm1": nn.LocalResponseNorm(5),
        **(activated("conv2_reduce", 64, 64, 1) if reduce else {}),
        **activated("conv2", 64, 192, 3),
        "norm2": nn.LocalResponseNorm(5),
        "pool2": shrink(),
    }
    channels = 192
    for name, widths in _INCEPTIONS.items():
        layers[f"inception{name}"] = inception(channels, *widths)
        if name in ("3b", "4e"):
            layers[f"pool{name[0]}"] = shrink()
        one, _, three, _, five, pool = widths
        channels = one + three + five + pool
    layers |= {
        "pool5": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "dropout": nn.Dropout(0.4),
        "fc": small(nn.Linear(channels, classes)),
    }
    return chain(layers)
