"""ResNet-50 (He et al. 2016)."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._resnet import ALONE, SMALLEST, build

MODEL = Model(
    name="resnet50",
    title="ResNet-50",
    task="image classification",
    input=(3, 224, 224),
    classes=1000,
    build=partial(build, blocks=(3, 4, 6, 3)),
    parameters=25_557_032,
    macs=4_089_184_256,
    smallest=SMALLEST,
    alone=ALONE,
    papers={
        "TX2": "98M parameters stated, which is the file's size in MB (25M in its text); 23,528,522 with 10 classes"
    },
)
