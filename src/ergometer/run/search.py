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
AS_GOOD = 1.03
_FAR = 3.0  # times the best: no setting makes up for that
FAR_BEHIND = f"more than {_FAR:g} times the best"
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
        self.handover_s: float | None = None
        self.started = time.monotonic()

    @abstractmethod
    def compare(self, first: Sequence[Trial]) -> list[Trial]:
        """Try these and more, all of which go into self.trials; the best of those that are left is first."""

    @property
    def took_s(self) -> float:
        return time.monotonic() - self.started

    def run(self, engines: Sequence[str]) -> Tuned:
        own = [replace(self.spec, engine=name, options=self.spec.source) for name in engines]
        # torch is what the others are compared with, and what compiles for minutes comes last.
        own.sort(key=lambda spec: (bool(registry.load("engines", spec.engine).slow_start), spec.engine != "torch"))
        specs = [self.steady(spec) for spec in own]
        specs += [spec for spec in own if spec.engine == "torch" and spec not in specs]  # what a user has by itself
        left = self.compare([Trial(spec=spec) for spec in specs])
        able = [trial for trial in self.trials if trial.values and not trial.failed]
        if not able:
            last = next((trial.why for trial in self.trials if trial.failed), "no engine works")
            raise UnavailableError(f"no setting could be measured in {self.limit_s:g} s: {last}.")
        best = self.steadier(left) if left else min(able, key=self.cost)
        for trial in able:
            trial.why = "" if trial is best else trial.why or self.worse
            if trial.why == self.worse and self.cost(trial) < self.cost(best):
                trial.why = "behind in an earlier round"
        return Tuned(spec=best.spec, goal=self.goal, trials=self.trials, took_s=self.took_s, handover_s=self.handover_s)

    def steadier(self, order: Sequence[Trial]) -> Trial:
        """The best, or its steady form if that is as good."""
        best = order[0]
        same = next((trial for trial in order if trial.spec == self.steady(best.spec)), best)
        return same if self.cost(same) <= AS_GOOD * self.cost(best) else best

    def steady(self, spec: Spec) -> Spec:
        """The same with freed memory kept, if the engine can and nobody asked for little memory: otherwise chance
        decides, in every process anew, whether large blocks are taken from the system in every step."""
        able = spec.device == "cpu" and "memory" in registry.load("engines", spec.engine).options
        free = self.goal != "memory" and not self.spec.budget.memory_bytes
        return told(spec, "memory", "kept") if able and free else spec

    @property
    def worse(self) -> str:
        return "slower" if self.goal == "time" else "more"

    def cost(self, trial: Trial) -> float:
        return trial.cost(self.goal)

    def near(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that their settings could make the best."""
        best = min(map(self.cost, trials), default=0.0)
        for trial in trials:
            trial.why = "" if self.cost(trial) <= _FAR * best else FAR_BEHIND
        return [trial for trial in trials if not trial.why]

    def settings(self, trials: Sequence[Trial]) -> list[Trial]:
        """What has not been tried: each of these, the best first, changed in one thing, and last of all with fewer
        threads."""
        return self.with_options(trials) + self.with_fewer_threads(trials)

    def with_options(self, trials: Sequence[Trial]) -> list[Trial]:
        allowed = {
            "precision": self.lower_precision,
            "accelerate": self.spec.device != "cpu",
            "layout": True,
            "memory": self.goal != "memory" and bool(self.spec.budget.memory_bytes),
        }
        names = [name for name, may in allowed.items() if may]
        return self._untried([other for spec in self._in_order(trials) for other in other_options(spec, names)])

    def with_fewer_threads(self, trials: Sequence[Trial]) -> list[Trial]:
        return self._untried([other for spec in self._in_order(trials) for other in fewer_threads(spec)])

    def _in_order(self, trials: Sequence[Trial]) -> list[Spec]:
        return [self.steady(trial.spec) for trial in sorted(trials, key=self.cost)]

    def _untried(self, specs: Sequence[Spec]) -> list[Trial]:
        """Those that would take minutes to prove are out at once."""
        tried, found = [trial.spec for trial in self.trials], []
        for spec in specs:
            if spec not in tried:
                tried.append(spec)
                slow = registry.load("engines", spec.engine).slow_start
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
        cost = (
            ("~" if trial.estimated else "") + format_value(trial.values[-1], UNITS[self.goal]) if trial.values else ""
        )
        self.tell(f"{trial.text}: {', '.join(filter(None, (cost, trial.why)))}")


def unproved(spec: Spec) -> str:
    where = f" --device {spec.device}" if spec.device != "cpu" else ""
    return f"not proved yet, which takes minutes: ergo verify {spec.model} --engine {spec.engine_text}{where}"


def ignored(_: Progress) -> None:
    pass


def _is_nvidia(device: str) -> bool:
    driver = sysroot() / "proc/driver/nvidia/version"
    return device == "cuda" or (device == "opencl" and driver.exists())


def told(spec: Spec, name: str, value: str) -> Spec:
    """The same with another option; what is the engine's default is not said."""
    choices = registry.load("engines", spec.engine).options
    chosen = spec.options | {name: value}
    said = {one: chosen[one] for one, values in choices.items() if chosen.get(one, values[0]) != values[0]}
    return replace(spec, options=spec.source | said)


def other_options(spec: Spec, names: Sequence[str]) -> list[Spec]:
    """The same with one of these options changed, where that can be."""
    choices = registry.load("engines", spec.engine).options
    found = [
        told(spec, name, value)
        for name in names
        for value in choices.get(name, ())
        if (value != "tf32" or _is_nvidia(spec.device)) and (name != "memory" or spec.device == "cpu")
    ]
    return [one for one in found if one != spec]


def fewer_threads(spec: Spec) -> list[Spec]:
    """The same on the large cores alone, with half the threads and with one."""
    here = sorted(os.sched_getaffinity(0))
    sizes = {core: size for core, size in capacities(sysroot()).items() if core in here}
    large = tuple(core for core, size in sizes.items() if size == max(sizes.values()))
    found = []
    if 0 < len(large) < len(sizes) and spec.cores is None:
        found.append(replace(spec, cores=large, threads=len(large)))
    now = spec.threads or len(here)
    return found + [replace(spec, threads=count) for count in sorted({max(1, now // 2), 1} - {now}, reverse=True)]
