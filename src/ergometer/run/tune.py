"""Which engine and which settings are best for a network here: a short search by real runs, remembered.

Every engine is tried with its own defaults, briefly. Those that are far behind the best are dropped; of the others
more settings are tried, the best engine's first; the better half of what is left runs longer; and the two best of those
run in turn until one is clearly better or the time is over. Only engines that are proved on the network take part.
"""

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ergometer.core import registry
from ergometer.core.errors import ErgoError, UnavailableError
from ergometer.core.quantity import format_value
from ergometer.core.record import Record
from ergometer.core.sensor import sysroot
from ergometer.core.spec import Budget, Spec
from ergometer.run.environment import probe_of
from ergometer.run.host import capacities
from ergometer.run.interrupt import Interrupt
from ergometer.run.lowering import StoppedError
from ergometer.run.parent import Progress, prepare, run_spec
from ergometer.run.prove import known_proof, proof_of
from ergometer.run.tuned import Trial, Tuned, place_of, recall, remember
from ergometer.store.database import Store

GOALS = {"time": "step_time", "energy": "energy_per_step", "memory": "peak_memory"}
UNITS = {"time": "s", "energy": "J", "memory": "B"}
LIMIT_S = 60.0
# Seconds of timed steps, in each round. Power is refreshed every tenth of a second on some devices.
_ROUNDS_S = {"time": (0.3, 1.0, 2.0), "memory": (0.3, 1.0, 2.0), "energy": (1.0, 2.0, 3.0)}
_LAST = 2
_CLEAR = 1.1  # times the other: no need to run the last two again
_MOST_TURNS = 5
_PERIOD_S = {"time": 0.1, "memory": 0.1, "energy": 0.01}  # between samples
_FAR = 2.0  # times the best: no setting makes up for that
_LIKELY = 1.5  # times the best, in a short run: a longer one could still show the other order
_HANG_S = 25.0  # a trial that says nothing for so long is given up
_FIRST_GUESS_S = 8.0  # what a trial takes, before one of its engine has been made


Tell = Callable[[str], None]


def tuned(
    spec: Spec,
    *,
    goal: str,
    engines: Sequence[str],
    interrupt: Interrupt,
    tell: Tell,
    limit_s: float = LIMIT_S,
    anew: bool = False,
    lower_precision: bool = False,
) -> Tuned:
    """The best setting for this spec, searched for or remembered; its engine, cores, threads, and steps are ignored.

    lower_precision: also what computes in fewer bits, and so gives other results.
    """
    spec = replace(spec, cores=None, threads=None, steps=None, warmup=None)
    usable, reasons = _usable(spec, engines)
    path = place_of(spec, goal, usable, lower_precision)
    known = None if anew else recall(path, spec, goal, usable, lower_precision)
    if known is not None:
        return known
    proved = _proved(spec, usable, reasons, interrupt, tell)
    if not proved:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise UnavailableError(f"no engine can run {spec.model} here: {why}.")
    search = _Search(spec, goal, limit_s, interrupt, tell, lower_precision)
    search.trials += [Trial(spec=replace(spec, engine=name), why=why) for name, why in reasons.items()]
    found = search.run(proved)
    remember(path, found)
    return found


def _usable(spec: Spec, engines: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The engines that could run it, and why others cannot."""
    reasons: dict[str, str] = {}
    for name in engines or registry.names("engines"):
        probe = probe_of(name, spec.device)
        able = registry.load("engines", name).modes
        if not probe.ok:
            reasons[name] = probe.reason
        elif spec.mode not in able:
            reasons[name] = f"it does {' and '.join(able)} alone"
    return [name for name in engines or registry.names("engines") if name not in reasons], reasons


def _proved(spec: Spec, engines: Iterable[str], reasons: dict[str, str], interrupt: Interrupt, tell: Tell) -> list[str]:
    """Those that compute the network rightly. What takes minutes to prove takes part once it has been proved."""
    found = []
    for name in engines:
        asked = replace(spec, engine=name)
        if name != "torch":
            proof = known_proof(asked)
            if proof is None and registry.load("engines", name).slow_start:
                reasons[name] = _unproved(asked)
                continue
            if proof is None:
                tell(f"{name} is proved first")
            try:
                proof = proof or proof_of(asked, interrupt)
            except StoppedError:
                raise
            except ErgoError as error:
                reasons[name] = str(error)
                continue
            if proof.reason:
                reasons[name] = proof.reason
                continue
        found.append(name)
    return found


class _Search:
    def __init__(self, spec: Spec, goal: str, limit_s: float, interrupt: Interrupt, tell: Tell, lower_precision: bool):
        self.spec, self.goal, self.limit_s, self.interrupt, self.tell = spec, goal, limit_s, interrupt, tell
        self.lower_precision = lower_precision
        self.trials: list[Trial] = []
        self.started = time.monotonic()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self.started

    def run(self, engines: Sequence[str]) -> Tuned:
        first = [replace(self.spec, engine=name, options=self.spec.source) for name in engines]
        first.sort(key=lambda spec: bool(registry.load("engines", spec.engine).slow_start))
        with tempfile.TemporaryDirectory(prefix="ergo-tune-") as folder, Store(Path(folder)) as store:
            left = self._round(store, [Trial(spec=spec) for spec in first], 0)
            if self._affords(left, self._settings(left), last=left):
                left = self._round(store, left, 0)
            left = [trial for trial in left if self._near(trial, left)]
            more = self._settings(left)
            self.trials += [trial for trial in more if trial.why]
            more = self._round(store, [trial for trial in more if not trial.why], 0, self._last_s(left))
            if self._affords(more, left, last=left):
                more = self._round(store, more, 0)
            left = self._likely(left + more)
            left = self._round(store, left, 1, self._last_s(left))
            for turn in range(_MOST_TURNS):
                left = self._better(left, 2)
                if turn and not self._is_open(left):
                    break
                left = self._round(store, left, _LAST)
        able = [trial for trial in self.trials if trial.values and not trial.failed]
        if not able:
            last = next((trial.why for trial in self.trials if trial.failed), "no engine works")
            raise UnavailableError(f"no setting could be measured in {self.limit_s:g} s: {last}.")
        best = min(left or able, key=self._cost)
        for trial in able:
            trial.why = "" if trial is best else trial.why or self._worse
            if trial.why == self._worse and self._cost(trial) < self._cost(best):
                trial.why = "behind in an earlier round"
        return Tuned(spec=best.spec, goal=self.goal, trials=self.trials, took_s=self.took_s)

    @property
    def _worse(self) -> str:
        return "slower" if self.goal == "time" else "more"

    def _cost(self, trial: Trial) -> float:
        return trial.cost(self.goal)

    def _near(self, trial: Trial, others: Sequence[Trial]) -> bool:
        near = self._cost(trial) <= _FAR * min(map(self._cost, others))
        trial.why = "" if near else f"more than {_FAR:g} times the best"
        return near

    def _settings(self, trials: Sequence[Trial]) -> list[Trial]:
        """More of each engine, the best engine's first; those that would take minutes to prove are out at once."""
        found = []
        for trial in sorted(trials, key=self._cost):
            slow = registry.load("engines", trial.spec.engine).slow_start
            for spec in settings_of(trial.spec, self.lower_precision):
                found.append(Trial(spec=spec, why=_unproved(spec) if slow and known_proof(spec) is None else ""))
        return found

    def _affords(self, *rounds: Sequence[Trial], last: Sequence[Trial]) -> bool:
        """Whether there is time for short runs of all these, and for the last round."""
        needed_s = sum(self._needs(trial, 0) for trials in rounds for trial in trials if not trial.why)
        return self.took_s + needed_s + self._last_s(last) <= self.limit_s

    def _likely(self, trials: Sequence[Trial]) -> list[Trial]:
        """The better half, and of that only what a longer run could still show to be best."""
        bound = _LIKELY * min(map(self._cost, trials), default=0.0)
        likely = sum(self._cost(trial) <= bound for trial in trials)
        return self._better(trials, min(likely, max(2, math.ceil(len(trials) / 2))))

    def _better(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        order = sorted(trials, key=self._cost)
        for trial in order[count:]:
            trial.why = self._worse
        return order[:count]

    def _last_s(self, trials: Sequence[Trial]) -> float:
        """Seconds that the last round will take, with the two best of these."""
        return sum(self._needs(trial, _LAST) for trial in sorted(trials, key=self._cost)[:2])

    def _is_open(self, trials: Sequence[Trial]) -> bool:
        """Whether there are two, neither clearly better, and time for another turn of both."""
        costs = sorted(map(self._cost, trials))
        in_time = self.took_s + self._last_s(trials) <= self.limit_s
        return len(costs) == 2 and in_time and costs[1] < _CLEAR * costs[0]

    def _round(self, store: Store, trials: Sequence[Trial], number: int, kept_s: float = 0.0) -> list[Trial]:
        """Run each, with kept_s left over; those that have been measured, in this round or before, and did not fail."""
        for trial in trials:
            if trial not in self.trials:
                self.trials.append(trial)
            late = self.took_s + self._needs(trial, number) + kept_s > self.limit_s
            if self.took_s >= self.limit_s or (late and any(other.values for other in self.trials)):
                trial.why = "" if trial.values else f"no time was left for it ({self.limit_s:g} s)"
                continue
            self._try(store, trial, number)
        return [trial for trial in trials if trial.values and not trial.failed]

    def _needs(self, trial: Trial, number: int) -> float:
        """Seconds that a run will take, from the last one of this setting or of this engine."""
        same = [other.took_s for other in self.trials if other.spec.engine == trial.spec.engine and other.values]
        return (trial.took_s or max(same, default=_FIRST_GUESS_S)) + _ROUNDS_S[self.goal][number]

    def _try(self, store: Store, trial: Trial, number: int) -> None:
        if not self._prepare(trial):
            return
        limit = self.spec.budget.memory_bytes
        budget = Budget(time_s=_ROUNDS_S[self.goal][number], memory_bytes=limit)
        spec = replace(trial.spec, trace_steps=0, period_s=_PERIOD_S[self.goal], budget=budget)
        begun = time.monotonic()
        record = run_spec(
            spec,
            store,
            _ignored,
            self.interrupt,
            hang_s=_HANG_S,
            longest_s=self.limit_s - self.took_s,
            # torch is proved in no precision, and a whole run takes more memory than its timed steps.
            brief=not limit and not (spec.engine == "torch" and "precision" in spec.options),
        )
        if record.status == "interrupted":
            raise StoppedError("stopped by the user; nothing is remembered")
        if record.status != "ok" and trial.values and self.took_s >= self.limit_s:
            return  # killed because the time is over: what it cost is known from before
        self._judge(trial, record)
        trial.took_s = time.monotonic() - begun
        self.tell(f"{trial.text}: {trial.why or format_value(trial.values[-1], UNITS[self.goal])}")

    def _prepare(self, trial: Trial) -> bool:
        """Whether the setting is right and made ready. What that takes, once, is not part of the search."""
        begun = time.monotonic()
        try:
            prepare(trial.spec, _ignored, self.interrupt)
        except StoppedError:
            raise
        except ErgoError as error:
            trial.why, trial.failed = str(error), True
        self.started += time.monotonic() - begun
        return not trial.failed

    def _judge(self, trial: Trial, record: Record) -> None:
        """Take what the run found, or why there is nothing."""
        metric = record.metrics.get(GOALS[self.goal])
        if record.status != "ok":
            trial.why = f"{record.status}: {record.reason}"
        elif metric is None:
            why = f"{GOALS[self.goal]} is absent: {record.absent.get(GOALS[self.goal], 'it was not measured')}"
            if not any(other.values for other in self.trials):
                raise UnavailableError(f"--goal {self.goal} cannot be searched for, {why}.")
            trial.why = why
        else:
            trial.values.append(metric.value)
            trial.note, trial.estimated = metric.note, metric.source == "estimated"
        trial.failed = bool(trial.why)


def _unproved(spec: Spec) -> str:
    where = f" --device {spec.device}" if spec.device != "cpu" else ""
    return f"not proved yet, which takes minutes: ergo verify {spec.model} --engine {spec.engine_text}{where}"


def _ignored(_: Progress) -> None:
    pass


def settings_of(spec: Spec, lower_precision: bool = False) -> list[Spec]:
    """Beside its defaults: what the engine can be told (a lower precision if that is allowed, another placement or
    layout), the large cores alone, and fewer threads."""
    found = []
    choices = registry.load("engines", spec.engine).options
    for name, told in (("precision", lower_precision), ("accelerate", spec.device != "cpu"), ("layout", True)):
        values = choices.get(name, ())[1:] if told else ()
        fitting = [value for value in values if value != "tf32" or spec.device == "cuda"]
        found += [replace(spec, options=spec.options | {name: value}) for value in fitting]
    sizes = {core: size for core, size in capacities(sysroot()).items() if core in os.sched_getaffinity(0)}
    large = tuple(core for core, size in sizes.items() if size == max(sizes.values()))
    if 0 < len(large) < len(sizes):
        found.append(replace(spec, cores=large, threads=len(large)))
    here = len(os.sched_getaffinity(0))
    counts = sorted({max(1, here // 2), 1} - {here}, reverse=True)
    return found + [replace(spec, threads=count) for count in counts]
