"""What a search for the best setting consists of, however settings are compared."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ergometer.core import registry
from ergometer.core.errors import ErgoError, UnavailableError
from ergometer.core.quantity import format_value
from ergometer.core.sensor import sysroot
from ergometer.core.spec import Spec
from ergometer.run.host import capacities
from ergometer.run.interrupt import Interrupt
from ergometer.run.lowering import StoppedError
from ergometer.run.parent import Progress, prepare
from ergometer.run.prove import known_proof
from ergometer.run.tuned import Trial, Tuned

GOALS = {"time": "step_time", "energy": "energy_per_step", "memory": "peak_memory"}
UNITS = {"time": "s", "energy": "J", "memory": "B"}
_FAR = 3.0  # times the best: no setting makes up for that
_FIRST_GUESS_S = 8.0  # what a trial takes, before one of its engine has been made
_HANG, _HANG_S = 0.4, 10.0  # of the whole time, and at least: a trial that says nothing for so long is given up

Tell = Callable[[str], None]


class Search(ABC):
    """Tries engines with their defaults, then settings of the best ones, until the time is over."""

    def __init__(
        self,
        spec: Spec,
        goal: str,
        limit_s: float,
        interrupt: Interrupt,
        tell: Tell,
        lower_precision: bool,
        out: Sequence[Trial],
    ):
        self.spec, self.goal, self.limit_s, self.interrupt, self.tell = spec, goal, limit_s, interrupt, tell
        self.lower_precision = lower_precision
        self.hang_s = max(_HANG_S, _HANG * limit_s)
        self.trials = list(out)
        self.started = time.monotonic()

    @abstractmethod
    def compare(self, first: Sequence[Trial]) -> list[Trial]:
        """Try these and more, all of which go into self.trials; the best of those that are left is first."""

    @property
    def took_s(self) -> float:
        return time.monotonic() - self.started

    def run(self, engines: Sequence[str]) -> Tuned:
        specs = [replace(self.spec, engine=name, options=self.spec.source) for name in engines]
        # torch is what the others are compared with, and what compiles for minutes comes last.
        specs.sort(key=lambda spec: (bool(registry.load("engines", spec.engine).slow_start), spec.engine != "torch"))
        left = self.compare([Trial(spec=spec) for spec in specs])
        able = [trial for trial in self.trials if trial.values and not trial.failed]
        if not able:
            last = next((trial.why for trial in self.trials if trial.failed), "no engine works")
            raise UnavailableError(f"no setting could be measured in {self.limit_s:g} s: {last}.")
        best = left[0] if left else min(able, key=self.cost)
        for trial in able:
            trial.why = "" if trial is best else trial.why or self.worse
            if trial.why == self.worse and self.cost(trial) < self.cost(best):
                trial.why = "behind in an earlier round"
        return Tuned(spec=best.spec, goal=self.goal, trials=self.trials, took_s=self.took_s)

    @property
    def worse(self) -> str:
        return "slower" if self.goal == "time" else "more"

    def cost(self, trial: Trial) -> float:
        return trial.cost(self.goal)

    def near(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that their settings could make the best."""
        best = min(map(self.cost, trials), default=0.0)
        for trial in trials:
            trial.why = "" if self.cost(trial) <= _FAR * best else f"more than {_FAR:g} times the best"
        return [trial for trial in trials if not trial.why]

    def settings(self, trials: Sequence[Trial]) -> list[Trial]:
        """More of each engine, the best engine's first; those that would take minutes to prove are out at once."""
        found = []
        for trial in sorted(trials, key=self.cost):
            slow = registry.load("engines", trial.spec.engine).slow_start
            for spec in settings_of(trial.spec, self.lower_precision):
                found.append(Trial(spec=spec, why=unproved(spec) if slow and known_proof(spec) is None else ""))
        return found

    def taken(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those of them that can be tried; of the others, the reason is kept."""
        self.trials += [trial for trial in trials if trial.why]
        return [trial for trial in trials if not trial.why]

    def has_time(self, trial: Trial, needed_s: float) -> bool:
        """Whether there is so much time for a trial; what is measured first need not fit."""
        if trial not in self.trials:
            self.trials.append(trial)
        late = self.took_s + needed_s > self.limit_s
        if self.took_s >= self.limit_s or (late and any(other.values for other in self.trials)):
            trial.why = "" if trial.values else f"no time was left for it ({self.limit_s:g} s)"
            return False
        return True

    def needs(self, trial: Trial) -> float:
        """Seconds that a trial will take, from the last one of this setting or of this engine."""
        same = [other.took_s for other in self.trials if other.spec.engine == trial.spec.engine and other.values]
        return trial.took_s or max(same, default=_FIRST_GUESS_S)

    def make_ready(self, trial: Trial) -> Path | None:
        """The network for this setting, if the engine needs one of its own; the trial has failed if it is not right.
        What that takes, once, is not part of the search."""
        begun, found = time.monotonic(), None
        try:
            found, _ = prepare(trial.spec, ignored, self.interrupt)
        except StoppedError:
            raise
        except ErgoError as error:
            trial.why, trial.failed = str(error), True
        self.started += time.monotonic() - begun
        return found

    def say(self, trial: Trial) -> None:
        """How its last try ended, or how it is out."""
        cost = format_value(trial.values[-1], UNITS[self.goal]) if trial.values else ""
        self.tell(f"{trial.text}: {', '.join(filter(None, (cost, trial.why)))}")


def unproved(spec: Spec) -> str:
    where = f" --device {spec.device}" if spec.device != "cpu" else ""
    return f"not proved yet, which takes minutes: ergo verify {spec.model} --engine {spec.engine_text}{where}"


def ignored(_: Progress) -> None:
    pass


def _is_nvidia(device: str) -> bool:
    driver = sysroot() / "proc/driver/nvidia/version"
    return device == "cuda" or (device == "opencl" and driver.exists())


def settings_of(spec: Spec, lower_precision: bool = False) -> list[Spec]:
    """Beside its defaults: what the engine can be told (a lower precision if that is allowed, another placement or
    layout), the large cores alone, and fewer threads."""
    found = []
    choices = registry.load("engines", spec.engine).options
    for name, told in (("precision", lower_precision), ("accelerate", spec.device != "cpu"), ("layout", True)):
        values = choices.get(name, ())[1:] if told else ()
        fitting = [value for value in values if value != "tf32" or _is_nvidia(spec.device)]
        found += [replace(spec, options=spec.options | {name: value}) for value in fitting]
    sizes = {core: size for core, size in capacities(sysroot()).items() if core in os.sched_getaffinity(0)}
    large = tuple(core for core, size in sizes.items() if size == max(sizes.values()))
    if 0 < len(large) < len(sizes):
        found.append(replace(spec, cores=large, threads=len(large)))
    here = len(os.sched_getaffinity(0))
    counts = sorted({max(1, here // 2), 1} - {here}, reverse=True)
    return found + [replace(spec, threads=count) for count in counts]
