"""Settings compared by whole runs, one after another: what measures energy and memory, and what an accelerator needs.

Every engine is tried with its own defaults, briefly. Those that are far behind the best are dropped; of the others
more settings are tried, the best engine's first; the better half of what is left runs longer; and the two best of those
run in turn until one is clearly better or the time is over.
"""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ergometer.core.errors import UnavailableError
from ergometer.core.record import Record
from ergometer.core.spec import Budget
from ergometer.run.lowering import StoppedError
from ergometer.run.parent import run_spec
from ergometer.run.search import GOALS, Search, ignored
from ergometer.run.tuned import Trial
from ergometer.store.database import Store

# Seconds of timed steps, in each round. Power is refreshed every tenth of a second on some devices.
_ROUNDS_S = {"time": (0.3, 1.0, 2.0), "memory": (0.3, 1.0, 2.0), "energy": (1.0, 2.0, 3.0)}
_LAST = 2
_CLEAR = 1.1  # times the other: no need to run the last two again
_MOST_TURNS = 5
_PERIOD_S = {"time": 0.1, "memory": 0.1, "energy": 0.01}  # between samples
_LIKELY = 1.5  # times the best, in a short run: a longer one could still show the other order


class SearchByRuns(Search):
    def compare(self, first: Sequence[Trial]) -> list[Trial]:
        with tempfile.TemporaryDirectory(prefix="ergo-tune-") as folder, Store(Path(folder)) as store:
            left = self._round(store, first, 0)
            if self._affords(left, self.settings(left), last=left):
                left = self._round(store, left, 0)
            left = self.near(left)
            more = self._round(store, self.taken(self.settings(left)), 0, self._last_s(left))
            if self._affords(more, left, last=left):
                more = self._round(store, more, 0)
            left = self._likely(left + more)
            left = self._round(store, left, 1, self._last_s(left))
            for turn in range(_MOST_TURNS):
                left = self._better(left, 2)
                if turn and not self._is_open(left):
                    break
                left = self._round(store, left, _LAST)
        return sorted(left, key=self.cost)

    def _affords(self, *rounds: Sequence[Trial], last: Sequence[Trial]) -> bool:
        """Whether there is time for short runs of all these, and for the last round."""
        needed_s = sum(self._needs(trial, 0) for trials in rounds for trial in trials if not trial.why)
        return self.took_s + needed_s + self._last_s(last) <= self.limit_s

    def _likely(self, trials: Sequence[Trial]) -> list[Trial]:
        """The better half, and of that only what a longer run could still show to be best."""
        bound = _LIKELY * min(map(self.cost, trials), default=0.0)
        likely = sum(self.cost(trial) <= bound for trial in trials)
        return self._better(trials, min(likely, max(2, math.ceil(len(trials) / 2))))

    def _better(self, trials: Sequence[Trial], count: int) -> list[Trial]:
        order = sorted(trials, key=self.cost)
        for trial in order[count:]:
            trial.why = self.worse
        return order[:count]

    def _last_s(self, trials: Sequence[Trial]) -> float:
        """Seconds that the last round will take, with the two best of these."""
        return sum(self._needs(trial, _LAST) for trial in sorted(trials, key=self.cost)[:2])

    def _is_open(self, trials: Sequence[Trial]) -> bool:
        """Whether there are two, neither clearly better, and time for another turn of both."""
        costs = sorted(map(self.cost, trials))
        in_time = self.took_s + self._last_s(trials) <= self.limit_s
        return len(costs) == 2 and in_time and costs[1] < _CLEAR * costs[0]

    def _round(self, store: Store, trials: Sequence[Trial], number: int, kept_s: float = 0.0) -> list[Trial]:
        """Run each, with kept_s left over; those that have been measured, in this round or before, and did not fail."""
        for trial in trials:
            if self.has_time(trial, self._needs(trial, number) + kept_s):
                self._try(store, trial, number)
        return [trial for trial in trials if trial.values and not trial.failed]

    def _needs(self, trial: Trial, number: int) -> float:
        return self.needs(trial) + _ROUNDS_S[self.goal][number]

    def _try(self, store: Store, trial: Trial, number: int) -> None:
        self.make_ready(trial)
        if trial.failed:
            return
        limit = self.spec.budget.memory_bytes
        budget = Budget(time_s=_ROUNDS_S[self.goal][number], memory_bytes=limit)
        spec = replace(trial.spec, trace_steps=0, period_s=_PERIOD_S[self.goal], budget=budget)
        begun = time.monotonic()
        record = run_spec(
            spec,
            store,
            ignored,
            self.interrupt,
            hang_s=self.hang_s,
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
        self.say(trial)

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
