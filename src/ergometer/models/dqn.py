"""DQN (Mnih et al. 2015): scores of actions from four frames, trained against a target network on replayed steps."""

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ergometer.core.model import Field, Model, Pass

if TYPE_CHECKING:
    from torch import nn

_DISCOUNT = 0.99


def build(input: tuple[int, ...], classes: int) -> "nn.Module":
    from torch import nn

    def left(size: int) -> int:
        return ((size - 8) // 4 + 1 - 4) // 2 + 1 - 2

    layers = {
        "conv1": nn.Conv2d(input[0], 32, 8, stride=4),
        "relu1": nn.ReLU(),
        "conv2": nn.Conv2d(32, 64, 4, stride=2),
        "relu2": nn.ReLU(),
        "conv3": nn.Conv2d(64, 64, 3),
        "relu3": nn.ReLU(),
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(64 * left(input[1]) * left(input[2]), 512),
        "relu4": nn.ReLU(),
        "fc2": nn.Linear(512, classes),
    }
    return nn.Sequential(OrderedDict(layers))


def layout(input: tuple[int, ...], classes: int) -> tuple[Field, ...]:
    return (
        Field("state", input),
        Field("action", (), classes),
        Field("reward", ()),
        Field("next_state", input),
        Field("done", ()),
    )


def loss(module: Any, companion: Any, batch: tuple[Any, ...]) -> Any:
    """Huber loss of the chosen action's score against the reward and the target network's best next score."""
    import torch

    state, action, reward, next_state, done = batch
    scores = module(state).gather(1, action[:, None])[:, 0]
    with torch.no_grad():
        wanted = reward + _DISCOUNT * (1 - done) * companion(next_state).max(1).values
    return torch.nn.functional.smooth_l1_loss(scores, wanted)


MODEL = Model(
    name="dqn",
    title="DQN, deep reinforcement learning",
    task="control",
    input=(4, 84, 84),
    classes=4,
    build=build,
    parameters=1_686_180,
    macs=9_345_024,
    layout=layout,
    feeds=("state",),
    passes=(Pass(name="", loss=loss),),
    companion=build,
    refresh=1000,
    data="catch",
    smallest=36,
    papers={"TX2": "parameters and operations not stated"},
)
