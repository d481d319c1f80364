"""MobileNetV2 (Sandler et al. 2018): inverted residuals with linear bottlenecks."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from ergometer.core.model import Model, Published
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
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="step_time",
            values={1: 0.4505, 2: 0.7063, 4: 2.7491, 8: 3.6183, 16: 6.4886, 32: 29.6561},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN (session)",
            mode="infer",
            metric="step_time",
            values={1: 0.0115, 2: 0.0287, 4: 0.0601, 8: 0.1254, 16: 0.2617},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="peak_memory",
            values={1: 1.57e8, 2: 2.4e8, 4: 5.13e8, 8: 1.126e9, 16: 2.457e9, 32: 5.12e9},
        ),
        Published(
            paper="EMDL21",
            device="Samsung Note 10",
            engine="MNN",
            mode="train",
            metric="step_time",
            values={1: 0.516, 2: 0.812, 4: 1.365},
        ),
        Published(
            paper="EMDL21",
            device="Samsung Note 10",
            engine="DL4J",
            mode="train",
            metric="step_time",
            values={1: 3.032, 2: 6.129},
        ),
        Published(
            paper="EMDL21",
            device="Raspberry Pi 3B+",
            engine="MNN",
            mode="train",
            metric="step_time",
            values={1: 6.698, 2: 10.651},
        ),
        Published(
            paper="EMDL21",
            device="Raspberry Pi 3B+",
            engine="TensorFlow",
            mode="train",
            metric="step_time",
            values={1: 10.468, 2: 14.157, 4: 27.574},
        ),
        Published(
            paper="EMDL21",
            device="Raspberry Pi 3B+",
            engine="PyTorch",
            mode="train",
            metric="step_time",
            values={1: 48.274, 2: 79.097},
        ),
    ),
)
