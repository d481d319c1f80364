"""ResNet-101 (He et al. 2016)."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._resnet import ALONE, SMALLEST, build

MODEL = Model(
    name="resnet101",
    title="ResNet-101",
    task="image classification",
    input=(3, 224, 224),
    classes=1000,
    build=partial(build, blocks=(3, 4, 23, 3)),
    parameters=44_549_160,
    macs=7_801_405_440,
    smallest=SMALLEST,
    alone=ALONE,
    papers={"TX2": "155M parameters stated, which is about the size of a file in MB"},
)
