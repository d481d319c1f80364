"""VGG-16 (Simonyan and Zisserman 2015)."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._vgg import SMALLEST, build

MODEL = Model(
    name="vgg16",
    title="VGG-16",
    task="image classification",
    input=(3, 224, 224),
    classes=10,
    build=partial(build, repeats=(2, 2, 3, 3, 3)),
    parameters=134_301_514,
    macs=15_466_209_280,
    smallest=SMALLEST,
    papers={
        "TX2": "134M parameters (138M in its text); 4G flops stated, but 15.5G at 224x224; "
        "0.33G and 33,638,218 parameters at 32x32"
    },
)
