"""GoogLeNet as EMDL21's authors meant it: without the 1x1 convolution before the second one, and with ReLU."""

from functools import partial

from ergometer.core.model import Model, Published
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
    published=(
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="step_time",
            values={1: 0.2235, 2: 0.3124, 4: 0.4736, 8: 0.7939, 16: 1.5085, 32: 3.759},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN (session)",
            mode="infer",
            metric="step_time",
            values={1: 0.0114, 2: 0.0213, 4: 0.0432, 8: 0.0833, 16: 0.1685, 32: 0.3429},
        ),
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine="MNN",
            mode="train",
            metric="peak_memory",
            values={1: 2.1e8, 2: 2.81e8, 4: 4.15e8, 8: 8.13e8, 16: 1.536e9, 32: 3.072e9},
        ),
    ),
)
