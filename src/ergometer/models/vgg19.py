"""VGG-19 (Simonyan and Zisserman 2015)."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._vgg import SMALLEST, build

MODEL = Model(
    name="vgg19",
    title="VGG-19",
    task="image classification",
    input=(3, 224, 224),
    classes=1000,
    build=partial(build, repeats=(2, 2, 4, 4, 4)),
    parameters=143_667_240,
    macs=19_632_062_464,
    smallest=SMALLEST,
    papers={"TX2": "548M parameters stated, which is the file's size in MB"},
)
