"""The Mentee network of SEC19 (after Venkatesan and Li 2016), trained from labels alone."""

from ergometer.core.model import Model
from ergometer.models._mentee import SMALLEST, build

MODEL = Model(
    name="mentee",
    title="Mentee (5 conv, 3 fc)",
    task="image classification",
    input=(3, 32, 32),
    classes=10,
    build=build,
    parameters=22_834_314,
    macs=86_745_088,
    smallest=SMALLEST,
    papers={"SEC19": "26.89M parameters stated, which is the network with 1000 classes (26,890,344)"},
)
