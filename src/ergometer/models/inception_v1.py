"""Inception V1, that is GoogLeNet (Szegedy et al. 2015) as Caffe's BVLC model, without the auxiliary classifiers."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._inception import build

MODEL = Model(
    name="inception_v1",
    title="Inception V1 (Caffe's GoogLeNet)",
    task="image classification",
    input=(3, 224, 224),
    classes=1000,
    build=partial(build, reduce=True),
    parameters=6_998_552,
    macs=1_582_671_872,
    smallest=32,
    papers={
        "TX2": "5M parameters and 30M flops stated; 1.58G multiply-accumulates (5,983,802 parameters with 10 classes)"
    },
)
