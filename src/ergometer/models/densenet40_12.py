"""DenseNet of 40 layers and growth 12 (Huang et al. 2017), for CIFAR."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._densenet import SMALLEST, build

MODEL = Model(
    name="densenet40_12",
    title="DenseNet-40 (growth 12)",
    task="image classification",
    input=(3, 32, 32),
    classes=10,
    build=partial(build, depth=40, growth=12),
    parameters=1_019_722,
    macs=264_812_928,
    smallest=SMALLEST,
    papers={"TX2": "1M parameters; 30M flops stated, a ninth of its multiply-accumulates"},
)
