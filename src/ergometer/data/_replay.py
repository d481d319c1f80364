"""A world that a network acts in, and the memory of what it has lived through."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Request
from ergometer.core.errors import UsageError
from ergometer.data._stream import check_fields, ordered

Frame = NDArray[np.uint8]
_CAPACITY = 10_000
_FIRST_ACTIONS = 64
_ACTIONS_PER_STEP = 4
_EPSILON = 0.1


class World(Protocol):
    """A game of so many actions, drawn in grey."""

    actions: int

    def reset(self) -> Frame:
        """Begin an episode; its first frame."""

    def act(self, action: int) -> tuple[Frame, float, bool, bool]:
        """The next frame, the reward, whether the game has ended, and whether the episode must begin anew."""


class Replay:
    """Plays a world epsilon-greedily; batches are drawn uniformly from the latest frames.

    Every frame is kept once and states are stacked when they are drawn: a state is the last frames of its episode,
    the first one repeated where there are too few.
    """

    fixed = False

    def __init__(self, request: Request, world: World, capacity: int = _CAPACITY):
        self._depth, *size = next(field.shape for field in request.fields if field.name == "state")
        self._fields = request.fields
        self._batch = request.batch
        self._world = world
        self._random = np.random.default_rng(request.seed)
        self._capacity = capacity
        self._frames = np.full((capacity, *size), 0, np.uint8)  # held from the start: it must not grow in the steps
        self._first = np.zeros(capacity, np.int64)  # the number of the episode's first frame
        self._action = np.zeros(capacity, np.int64)
        self._reward = np.zeros(capacity, np.float32)
        self._done = np.zeros(capacity, np.float32)
        self._followed = np.zeros(capacity, np.bool_)  # by another frame of its episode
        self._lived = 0  # frames so far, the number of the next
        self._begin()
        for _ in range(max(request.batch, _FIRST_ACTIONS)):
            self._act(self._any_action())

    def play(self, policy: Callable[[Any], Any]) -> None:
        for _ in range(_ACTIONS_PER_STEP):
            if self._random.random() < _EPSILON:
                self._act(self._any_action())
            else:
                state = self._states(np.array([self._lived - 1]))
                self._act(int(np.argmax(np.asarray(policy(state))[0])))

    def batch(self) -> tuple[NDArray[Any], ...]:
        numbers = self._draw()
        slots = numbers % self._capacity
        arrays: dict[str, NDArray[Any]] = {
            "state": self._states(numbers),
            "action": self._action[slots],
            "reward": self._reward[slots],
            "next_state": self._states(numbers + 1),
            "done": self._done[slots],
        }
        return ordered(self._fields, arrays)

    def _draw(self) -> NDArray[np.int64]:
        oldest = max(0, self._lived - self._capacity + self._depth - 1)  # one whose stack is still whole
        drawn = np.empty(0, np.int64)
        while len(drawn) < self._batch:
            numbers = self._random.integers(oldest, self._lived - 1, 2 * self._batch)
            drawn = np.concatenate([drawn, numbers[self._followed[numbers % self._capacity]]])
        return drawn[: self._batch]

    def _states(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        stack = numbers[:, None] + np.arange(1 - self._depth, 1)
        stack = np.maximum(stack, self._first[numbers % self._capacity][:, None])
        states: NDArray[np.float32] = self._frames[stack % self._capacity].astype(np.float32)
        states /= 255
        return states

    def _any_action(self) -> int:
        return int(self._random.integers(self._world.actions))

    def _act(self, action: int) -> None:
        frame, reward, done, over = self._world.act(action)
        now = (self._lived - 1) % self._capacity
        self._action[now] = action
        self._reward[now] = min(max(reward, -1.0), 1.0)
        self._done[now] = done
        self._followed[now] = True
        self._keep(frame, int(self._first[now]))
        if done or over:
            self._begin()

    def _begin(self) -> None:
        self._keep(self._world.reset(), self._lived)

    def _keep(self, frame: Frame, first: int) -> None:
        slot = self._lived % self._capacity
        self._frames[slot] = frame
        self._first[slot] = first
        self._followed[slot] = False
        self._lived += 1


def world_size(name: str, request: Request, actions: int, smallest: int = 1) -> tuple[int, int]:
    """Height and width of the frames that the request wants; UsageError if the world cannot serve it.

    actions: how many the world has; 0 if it takes any number.
    """
    fields = check_fields(name, request, state=3, action=0, reward=0, next_state=3, done=0)
    if actions and fields["action"].high != actions:
        raise UsageError(
            f"{name} has {actions} actions and the model {fields['action'].high}: use --classes {actions}."
        )
    _, height, width = fields["state"].shape
    if min(height, width) < smallest:
        raise UsageError(f"{name} is drawn with {smallest} pixels a side or more: use a larger --input.")
    return height, width
