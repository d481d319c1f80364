"""MobileNetV2 (Sandler et al. 2018): inverted residuals with linear bottlenecks."""

from typing import TYPE_CHECKING

from ergometer.core.model import Model

if TYPE_CHECKING:
    from torch import nn

# expansion, output channels, repeats, stride of the first
_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def build(classes: int) -> "nn.Module":
    import torch
    from torch import nn

    def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        padding = kernel // 2
        conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out")
        return [conv, nn.BatchNorm2d(outputs)]

    class InvertedResidual(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
            super().__init__()
            hidden = inputs * expansion
            expand = [*convolution(inputs, hidden, 1), nn.ReLU6()] if expansion > 1 else []
            depthwise = [*convolution(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6()]
            self.body = nn.Sequential(*expand, *depthwise, *convolution(hidden, outputs, 1))
            self.residual = stride == 1 and inputs == outputs

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.body(x)
            return x + out if self.residual else out

    channels = 32
    layers: list[nn.Module] = [*convolution(3, channels, 3, 2), nn.ReLU6()]
    for expansion, outputs, repeats, stride in _BLOCKS:
        for repeat in range(repeats):
            layers.append(InvertedResidual(channels, outputs, stride if repeat == 0 else 1, expansion))
            channels = outputs
    layers += [*convolution(channels, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    last = nn.Linear(1280, classes)
    nn.init.normal_(last.weight, std=0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Sequential(*layers), nn.Sequential(nn.Dropout(0.2), last))


MODEL = Model(
    name="mobilenet_v2",
    title="MobileNetV2 1.0",
    task="image classification",
    input=(3, 224, 224),
    classes=1001,
    build=build,
    papers={"EMDL21": "3.4M parameters stated; its authors' code has 3,506,153 (1001 classes)"},
)
