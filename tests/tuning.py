"""A device on which searches for the best setting are made up: a step costs what it is told."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ergometer.core.probe import Probe
from ergometer.core.record import Metric, Record
from ergometer.core.spec import Budget, Spec
from ergometer.run import handover, search_by_runs, search_loaded, tune, tuned
from ergometer.run import search as searching
from ergometer.run.turns import FailedError
from ergometer.run.worker import THOROUGH_MOMENTS

SPEC = Spec(model="lenet", batch=8)
FITTING = replace(SPEC, budget=Budget(memory_bytes=10**15))  # by whole runs instead of turns
ENGINES = ["torch", "mnn", "litert"]
Costs = Callable[[Spec], float]


class Device:
    """A device on which a step costs what it is told, and time passes only in runs and turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, costs: Costs, *, start_s: float = 2.0):
        self.costs, self.start_s, self.now, self.ran = costs, start_s, 0.0, list[Spec]()
        self.versions = {"mnn": "1"}
        self.room, self.held, self.most = 1e12, 0.0, 0.0
        self.load_on = 1  # cores on which networks load, each on one
        self.loading_s: Costs = lambda spec: self.start_s  # without end if it is endless; negative costs are crashes
        self.bytes_of: Costs = lambda spec: 1e9  # from the first turn on
        self.free_at = [0.0]
        self.groups: list[list[str]] = []  # engines that loaded at once
        self.loading: list[str] = []
        self.contestants: list[Contestant] = []
        monkeypatch.setattr(search_by_runs, "run_spec", self.run)
        monkeypatch.setattr(search_loaded, "Contestant", lambda spec, *_: Contestant(self, spec))
        self.handover_at: Callable[[float], float | str] = lambda now: 1e-7
        self.luck: Callable[[int], float] = lambda process: 1.0
        self.busy: Callable[[float], bool] = lambda now: False  # something else uses the CPU: all takes 8 times as long
        for module in (handover, tune):
            monkeypatch.setattr(module, "handover_s", lambda cores: self.handover_at(self.now))
        monkeypatch.setattr(search_loaded, "available_bytes", lambda: self.room - self.held)
        monkeypatch.setattr(searching.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(searching.time, "sleep", self.sleep)
        monkeypatch.setattr(tune, "probe_of", lambda name, device: Probe(name in ENGINES, "not here"))
        monkeypatch.setattr(tuned, "versions_of", lambda name, device: {name: self.versions.get(name, "1")})
        monkeypatch.setattr(tune, "known_proof", lambda spec: _Proved())
        monkeypatch.setattr(searching, "known_proof", lambda spec: _Proved())
        monkeypatch.setattr(searching, "prepare", lambda spec, watch, interrupt: (None, None))
        monkeypatch.setattr(searching.os, "sched_getaffinity", lambda pid: set(range(4)))
        monkeypatch.setattr(searching, "capacities", lambda root: {})

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, spec: Spec, store: Any, watch: Any, interrupt: Any, **_: Any) -> Record:
        self.ran.append(spec)
        step_s = self.costs(spec)
        self.now += self.start_s + max(step_s, spec.budget.time_s or 0) * 1.5
        record = Record(id="r", spec=spec, status="ok", started_at="")
        if step_s < 0:
            self.now += 2 * abs(step_s)
            return replace(record, status="failed", reason="the driver crashed")
        memory = 1e9 / step_s if spec.engine == "torch" else 1e8
        limit = spec.budget.memory_bytes
        if limit and memory > limit:
            return replace(record, status="out_of_memory", reason="killed")
        metrics = {
            "step_time": Metric(value=step_s, unit="s"),
            "peak_memory": Metric(value=memory, unit="B", source="counter"),
        }
        return replace(record, metrics=metrics, absent={"energy_per_step": "no power sensor"})


class Contestant:
    """A worker on that device, which takes more memory from its first turn on; negative costs are crashes."""

    def __init__(self, device: Device, spec: Spec):
        self.device, self.spec = device, spec
        loading_s = device.loading_s(spec)
        self.crashes = loading_s < 0
        self.loaded_at = max(device.now, min(device.free_at)) + abs(loading_s)
        if self.loaded_at < math.inf:  # what hangs keeps no core busy
            device.free_at = sorted([*device.free_at, self.loaded_at])[-device.load_on :]
        device.loading.append(spec.engine)
        self.luck = device.luck(len(device.ran))
        device.ran.append(spec)
        self.held = 0.0
        self.thorough: list[bool] = []  # of each turn
        device.contestants.append(self)
        self._hold(0.3e9)

    def _hold(self, size: float) -> None:
        self.device.held += size - self.held
        self.held = size
        self.device.most = max(self.device.most, self.device.held)

    def wait_until_loaded(self, hang_s: float, end_by: float) -> None:
        if self.device.loading:
            self.device.groups.append(self.device.loading)
            self.device.loading = []
        if self.loaded_at > (given_up := min(end_by, self.device.now + hang_s)):
            self.device.now = max(self.device.now, given_up)
            raise FailedError("the worker took longer than was left for it")
        self.device.now = max(self.device.now, self.loaded_at)
        if self.crashes:
            raise FailedError("failed: it crashed while it loaded")

    def turn(self, hang_s: float, end_by: float, *, thorough: bool = False) -> float:
        self._hold(self.device.bytes_of(self.spec))
        self.thorough.append(thorough)
        self.disturbed = self.device.busy(self.device.now)
        step_s = self.device.costs(self.spec) * self.luck * (8 if self.disturbed else 1)
        turn_s = (self.spec.budget.time_s or 0.0) * (THOROUGH_MOMENTS if thorough else 1)
        self.device.now += max(abs(step_s), math.ceil(turn_s / abs(step_s)) * abs(step_s))
        if step_s < 0:
            raise FailedError("failed: the driver crashed")
        if self.device.now > end_by:
            raise FailedError("the worker took longer than was left for it")
        return step_s

    def resident_bytes(self) -> int:
        return int(self.held)

    def close(self) -> None:
        self._hold(0.0)


class _Proved:
    reason = ""


def by_table(table: dict[tuple[str, int | None], float], default: float = 1.0) -> Costs:
    return lambda spec: table.get((spec.engine, spec.threads), default)
