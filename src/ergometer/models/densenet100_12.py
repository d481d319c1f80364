"""DenseNet of 100 layers and growth 12 (Huang et al. 2017), for CIFAR."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._densenet import SMALLEST, build

MODEL = Model(
    name="densenet100_12",
    title="DenseNet-100 (growth 12)",
    task="image classification",
    input=(3, 32, 32),
    classes=10,
    build=partial(build, depth=100, growth=12),
    parameters=6_979_642,
    macs=1_769_516_448,
    smallest=SMALLEST,
    papers={"TX2": "7M parameters; 31M flops stated, a 57th of its multiply-accumulates"},
)
