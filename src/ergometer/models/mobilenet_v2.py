"""MobileNetV2 (Sandler et al. 2018): inverted residuals with linear bottlenecks."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from ergometer.core.model import Model
from ergometer.models._emdl21 import library, mate30
from ergometer.models._layers import chain, normalized, small

if TYPE_CHECKING:
    from torch import nn

# expansion, output channels, repeats, stride of the first
_BLOCKS = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    import torch
    from torch import nn

    class InvertedResidual(nn.Sequential):
        def __init__(self, inputs: int, outputs: int, stride: int, expansion: int):
            hidden = inputs * expansion
            layers: dict[str, nn.Module] = {}
            if expansion > 1:
                layers |= {**normalized("expand", inputs, hidden, 1), "expand_relu": nn.ReLU6()}
            layers |= normalized("depthwise", hidden, hidden, 3, stride, groups=hidden)
            layers |= {"depthwise_relu": nn.ReLU6(), **normalized("project", hidden, outputs, 1)}
            super().__init__(OrderedDict(layers))
            self.residual = stride == 1 and inputs == outputs

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = super().forward(x)  # type: ignore[no-untyped-call]
            return x + out if self.residual else out

    channels = 32
    layers: dict[str, nn.Module] = {**normalized("conv1", input[0], channels, 3, 2), "conv1_relu": nn.ReLU6()}
    for stage, (expansion, outputs, repeats, stride) in enumerate(_BLOCKS, 1):
        for repeat in range(repeats):
            block = InvertedResidual(channels, outputs, stride if repeat == 0 else 1, expansion)
            layers[f"block{stage}_{repeat + 1}"] = block
            channels = outputs
    layers |= {
        **normalized("conv2", channels, 1280, 1),
        "conv2_relu": nn.ReLU6(),
        "pool": nn.AdaptiveAvgPool2d(1),
        "flatten": nn.Flatten(),
        "dropout": nn.Dropout(0.2),
        "fc": small(nn.Linear(1280, classes)),
    }
    return chain(layers)


MODEL = Model(
    name="mobilenet_v2",
    title="MobileNetV2 1.0",
    task="image classification",
    input=(3, 224, 224),
    classes=1001,
    build=build,
    parameters=3_506_153,
    macs=300_775_552,
    smallest=32,
    alone=33,
    papers={"EMDL21": "3.4M parameters stated; its authors' code has 3,506,153 (1001 classes)"},
    published=(
        *mate30(
            train_ms=(450.5, 706.3, 2749.1, 3618.3, 6488.6, 29656.1),
            infer_ms=(11.5, 28.7, 60.1, 125.4, 261.7),
            memory_mb=(157, 240, 513, 1126, 2457, 5120),
        ),
        library("Samsung Note 10", "MNN", (516, 812, 1365)),
        library("Samsung Note 10", "DL4J", (3032, 6129)),
        library("Raspberry Pi 3B+", "MNN", (6698, 10651)),
        library("Raspberry Pi 3B+", "TensorFlow", (10468, 14157, 27574)),
        library("Raspberry Pi 3B+", "PyTorch", (48274, 79097)),
    ),
)
