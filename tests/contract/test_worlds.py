"""Data sets that are played: what was lived through is remembered, and playing pays."""

from typing import Any

import numpy as np
import pytest

from ergometer.core.dataset import Request
from ergometer.core.errors import UsageError
from ergometer.core.model import Field
from ergometer.data._replay import Replay
from tests.datasets import WORLD, available, one_sentence, request_for, rows


class Counting:
    """Frames that say which they are: episodes of so many frames, numbered without end."""

    actions = 4

    def __init__(self, length: int) -> None:
        self.length = length
        self.shown = -1
        self.acted: list[int] = []

    def frame(self) -> Any:
        self.shown += 1
        return np.array([divmod(self.shown, 256)] * 2, np.uint8)

    def reset(self) -> Any:
        self.left = self.length - 1
        return self.frame()

    def act(self, action: int) -> tuple[Any, float, bool, bool]:
        self.acted.append(action)
        self.left -= 1
        return self.frame(), 7.0 if self.left else -7.0, not self.left, not self.left


@pytest.mark.parametrize(("capacity", "length"), [(1000, 7), (50, 7), (50, 1000), (20, 2)])
def test_what_was_lived_through_is_remembered_as_it_was(capacity: int, length: int) -> None:
    fields = (Field("state", (4, 2, 2)), *WORLD[1:3], Field("next_state", (4, 2, 2)), WORLD[4])
    world = Counting(length)
    replay = Replay(Request(fields=fields, batch=32, seed=0), world, capacity)
    for _ in range(40):
        replay.play(lambda state: np.zeros((1, 4)))
        state, _, reward, after, done = replay.batch()
        frames, following = (np.rint(s[:, :, 0] * 255).astype(int) @ (256, 1) for s in (state, after))
        numbers = frames[:, -1]
        assert (world.shown - numbers < capacity).all() and (numbers < world.shown).all()
        begins = numbers - numbers % length
        for back in range(4):
            np.testing.assert_array_equal(frames[:, 3 - back], np.maximum(numbers - back, begins))
            np.testing.assert_array_equal(following[:, 3 - back], np.maximum(numbers + 1 - back, begins))
        np.testing.assert_array_equal(done == 1, numbers % length == length - 2)
        np.testing.assert_array_equal(reward, np.where(done == 1, -1, 1))


def test_playing_is_greedy_nine_times_out_of_ten() -> None:
    fields = (Field("state", (4, 2, 2)), *WORLD[1:3], Field("next_state", (4, 2, 2)), WORLD[4])
    world = Counting(10)
    replay = Replay(Request(fields=fields, batch=200, seed=0), world)
    assert len(world.acted) == 200 and set(world.acted) == {0, 1, 2, 3}
    world.acted.clear()
    asked = []

    def policy(state: Any) -> Any:
        asked.append(state.shape)
        assert state.dtype == np.float32 and round(float(state[0, -1, 0, 1]) * 255) == world.shown % 256
        return np.array([[0.0, 1.0, 9.0, 2.0]])

    for _ in range(250):
        replay.play(policy)
    assert len(world.acted) == 1000 and set(asked) == {(1, 4, 2, 2)}
    assert 0.85 < len(asked) / 1000 < 0.95 and 0.88 < world.acted.count(2) / 1000 < 0.97


@pytest.mark.parametrize("name", ["catch", "atari"])
def test_worlds(name: str) -> None:
    dataset = available(name)

    def lived(seed: int) -> tuple[Any, ...]:
        world = dataset.open(request_for(name, None, seed=seed, batch=64))
        for _ in range(60):
            world.play(lambda state: state.mean((0, 2, 3))[None])
        batch: tuple[Any, ...] = world.batch()
        return batch

    state, action, _, after, _ = first = lived(3)
    assert rows([first]) == rows([lived(3)]) and rows([first]) != rows([lived(4)])
    assert state.min() >= 0 and 0.5 < state.max() <= 1 and set(action.tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(state[:, 1:][:, -1], after[:, -2])
    assert (state[:, -1] != after[:, -1]).any()
    six = request_for(name, None, batch=64, fields=(WORLD[0], Field("action", (), 6), *WORLD[2:]))
    if name == "catch":  # takes any number of actions, of which three move
        assert dataset.open(six).batch()[1].max() > 3
        return
    with pytest.raises(UsageError) as caught:
        dataset.open(six)
    one_sentence(caught.value, name, "--classes 4")


def test_catching_pays() -> None:
    from ergometer.data.catch import Catch

    world = Catch((84, 84), 4, 0)
    for follows in (True, False):
        total = 0.0
        for _ in range(60):
            frame, over = world.reset(), False
            while not over:
                ball, paddle = (np.flatnonzero((frame == grey).any(0)).mean() for grey in (255, 128))
                towards = 1 if ball < paddle - 2 else 2 if ball > paddle + 2 else 3
                frame, reward, done, over = world.act(towards if follows else 0)
            assert done and reward in (-1, 1)
            total += reward
        assert total == 60 if follows else total < 0
