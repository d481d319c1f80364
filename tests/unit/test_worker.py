"""What a worker does in its turns: how long it steps, when it loads anew, and which steps count."""

import json
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ergometer.core.engine import Step
from ergometer.core.spec import Budget, Spec
from ergometer.run import worker as working
from ergometer.run.worker import SHORT, THOROUGH, Worker

MOMENT_S = 0.1
Turns = Callable[[bytes, Sequence[float], Sequence[float]], tuple[list[float], "Device"]]


class Device:
    """Time passes only in steps and in loading, which takes as long as is told for each time. loaded: the steps that
    each loaded network has made."""

    def __init__(self, steps_s: Sequence[float], load_s: Sequence[float]):
        self.now_ns, self.steps_s, self.load_s, self.loaded = 0, steps_s, load_s, list[int]()

    def engine(self) -> Any:
        device = self

        class Engine:
            def load(self, *_: Any) -> None:
                device.now_ns += round(device.load_s[len(device.loaded)] * 1e9)
                device.loaded.append(0)

            def step(self) -> Step:
                begun, number = device.now_ns, min(device.loaded[-1], len(device.steps_s) - 1)
                device.now_ns += round(device.steps_s[number] * 1e9)
                device.loaded[-1] += 1
                return Step((begun, device.now_ns))

            def close(self) -> None:
                pass

        return Engine()


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    messages, telling = os.pipe()
    asked, asking = os.pipe()

    def taken(words: bytes, steps_s: Sequence[float], load_s: Sequence[float]) -> tuple[list[float], Device]:
        """What a step took in the first turn and in each that is asked for, the network having been loaded."""
        device = Device(steps_s, load_s)
        monkeypatch.setattr(working, "now_ns", lambda: device.now_ns)
        worker = Worker.__new__(Worker)
        stream = SimpleNamespace(batch=lambda: [])
        spec = Spec(model="lenet", mode="infer", budget=Budget(time_s=MOMENT_S))
        worker.__dict__ |= {"spec": spec, "engine": device.engine(), "model": None, "stream": stream}
        worker.__dict__ |= {"environment": None, "spans": [], "_fixed": True, "_pads": [], "_loads": array("q")}
        worker.__dict__ |= {"_messages": telling, "_stage": ("start", 0)}
        worker._load()
        worker._anew_ns = worker._load_ns + round(steps_s[0] * 1e9)
        os.write(asking, words)
        os.close(asking)
        worker._take_turns(asked)
        told = map(json.loads, os.read(messages, 1 << 16).splitlines())
        return [message["step_s"] for message in told if message["event"] == "turn"], device

    yield taken
    for end in (messages, telling, asked):
        os.close(end)


def test_a_thorough_turn_loads_anew_if_that_is_quick_and_is_twice_as_long(turns: Turns) -> None:
    """Steps are slower after loading; the first of a turn does not count."""
    found, device = turns(SHORT + THOROUGH, [0.06, 0.05, 0.04], [0.34, 0.34])
    assert found == pytest.approx([0.05, 0.04, 0.04])
    first, anew = device.loaded
    assert first == 2 + 3 and anew == 1 + 20  # 0.1 s twice; twice the 0.4 s in which it was loaded and stepped once


def test_loading_that_turns_out_to_take_longer_makes_no_turn_endless(turns: Turns) -> None:
    found, device = turns(THOROUGH + THOROUGH, [0.05], [0.4, 3.0])
    assert len(found) == 3 and device.loaded == [2, 1 + 20 + 8]  # twice the 0.5 s that are quick; then it stays loaded


def test_what_takes_long_to_load_stays_loaded(turns: Turns) -> None:
    found, device = turns(THOROUGH, [0.02], [0.5])
    assert len(found) == 2 and device.loaded == [5 + 20]  # a moment, and four of them


def test_a_long_step_counts_though_it_is_the_first(turns: Turns) -> None:
    found, device = turns(SHORT + THOROUGH, [0.15, 0.16, 0.17, 0.18, 0.19], [9.0])
    assert found == pytest.approx([0.15, 0.16, 0.18]) and device.loaded == [1 + 1 + 3]
