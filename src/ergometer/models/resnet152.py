"""ResNet-152 (He et al. 2016)."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._resnet import ALONE, SMALLEST, build

MODEL = Model(
    name="resnet152",
    title="ResNet-152",
    task="image classification",
    input=(3, 224, 224),
    classes=1000,
    build=partial(build, blocks=(3, 8, 36, 3)),
    parameters=60_192_808,
    macs=11_513_626_624,
    smallest=SMALLEST,
    alone=ALONE,
    papers={"TX2": "220M parameters stated, which is the size in MB of the file with 10 classes (58,164,298)"},
)
