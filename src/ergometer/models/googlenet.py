"""GoogLeNet as EMDL21's authors meant it: without the 1x1 convolution before the second one, and with ReLU."""

from functools import partial

from ergometer.core.model import Model
from ergometer.models._emdl21 import mate30
from ergometer.models._inception import build

MODEL = Model(
    name="googlenet",
    title="GoogLeNet of EMDL21",
    task="image classification",
    input=(3, 224, 224),
    classes=10,
    build=partial(build, reduce=False),
    parameters=5_979_642,
    macs=1_568_813_056,
    smallest=32,
    papers={
        "EMDL21": "6.8M parameters stated; its authors' code has 5,979,642, and neither ReLU nor a loss that falls"
    },
    published=mate30(
        train_ms=(223.5, 312.4, 473.6, 793.9, 1508.5, 3759),
        infer_ms=(11.4, 21.3, 43.2, 83.3, 168.5, 342.9),
        memory_mb=(210, 281, 415, 813, 1536, 3072),
    ),
)
