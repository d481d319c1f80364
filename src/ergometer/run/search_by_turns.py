"""Settings compared by turns: each in a process of its own, all loaded, and one at a time steps for a moment.

What else happens on the device then slows all of them down alike; runs one after another differ by half on a shared
machine. The engines begin with their own defaults; those far behind are closed, and more settings of the others join,
the best engine's first. After every round those are closed that are further behind than so few turns can be wrong by.
"""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ergometer.core.sensor import read_text
from ergometer.core.spec import Budget
from ergometer.run.search import Search
from ergometer.run.tuned import Trial
from ergometer.run.turns import Contestant, FailedError

_TURN_S = 0.2
_ROUNDS_KEPT = 4  # for which time is left over
_MOST_ROUNDS = 100
_DOUBT = 2.0  # divided by the number of turns: how far behind one may be and still turn out to be the best
_ROOM = 2.0  # times the largest so far: memory that is left free for another


class SearchByTurns(Search):
    def compare(self, first: Sequence[Trial]) -> list[Trial]:
        self.alive: dict[str, Contestant] = {}
        with tempfile.TemporaryDirectory(prefix="ergo-tune-") as folder:
            self.folder = Path(folder)
            try:
                left = self._in_turns(first)
            finally:
                for trial in self.trials:
                    self._close(trial)
        return sorted(left, key=lambda trial: self._behind(trial, left))

    def _in_turns(self, first: Sequence[Trial]) -> list[Trial]:
        left = self._enter(first)
        left = self._round(left)
        near = self.near(left)
        for trial in left:
            if trial not in near:
                self._close(trial)
        more = self._enter(self.taken(self.settings(near)), near)
        left = self._loaded([*near, *more])
        for _ in range(_MOST_ROUNDS):
            if len(left) < 2 or self.took_s + self._turns_s(left) > self.limit_s:
                break
            left = self._undecided(self._round(left))
        return left

    def _enter(self, trials: Sequence[Trial], others: Sequence[Trial] = ()) -> list[Trial]:
        """Each loads and has its first turn, in its share of the time, unless it is the first of all. With others there
        already, time is left over for some rounds."""
        for number, trial in enumerate(trials):
            kept_s = _ROUNDS_KEPT * self._turns_s(sorted(others, key=self.cost)[:2])
            if not self.has_time(trial, self.needs(trial) + kept_s):
                continue
            bundle = self.make_ready(trial)
            if trial.failed:
                continue
            self._make_room()
            begun = time.monotonic()
            spec = replace(trial.spec, trace_steps=0, budget=Budget(time_s=_TURN_S))
            # torch is proved in no precision: whether it learns is checked.
            brief = [] if spec.engine == "torch" and "precision" in spec.options else ["--brief"]
            flags = brief + ([str(bundle)] if bundle else [])
            place = self.folder / str(len(list(self.folder.iterdir())))
            self.alive[trial.text] = Contestant(spec, place, flags, self.interrupt)
            share_s = (self.limit_s - self.took_s) / (len(trials) - number)
            self._turn(trial, share_s if any(other.values for other in self.trials) else math.inf)
            trial.took_s = time.monotonic() - begun
            self.say(trial)
        return self._loaded(trials)

    def _round(self, trials: Sequence[Trial]) -> list[Trial]:
        """A turn of each; nobody is always the first."""
        at = len(trials[0].values) % len(trials) if trials else 0
        for trial in [*trials[at:], *trials[:at]]:
            if self.took_s + self._turns_s([trial]) <= self.limit_s:
                self._turn(trial)
        return self._loaded(trials)

    def _turn(self, trial: Trial, longest_s: float = math.inf) -> None:
        begun = time.monotonic()
        end_by = min(begun + longest_s, self.started + self.limit_s)
        try:
            trial.values.append(self.alive[trial.text].turn(self.hang_s, end_by))
        except FailedError as error:
            self._close(trial)
            if not trial.values or time.monotonic() < self.started + self.limit_s:
                trial.why, trial.failed = str(error), True

    def _turns_s(self, trials: Sequence[Trial]) -> float:
        """Seconds that a turn of each will take."""
        return sum(max(_TURN_S, trial.values[-1]) for trial in trials)

    def _behind(self, trial: Trial, others: Sequence[Trial]) -> float:
        """How many times the middle of the others it takes, in the rounds in which all of them had a turn."""
        rounds = min(len(other.values) for other in others)
        return statistics.median(
            trial.values[-number] / math.prod(other.values[-number] for other in others) ** (1 / len(others))
            for number in range(1, rounds + 1)
        )

    def _undecided(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that may be the best; the others are closed."""
        if len(trials) < 2:
            return list(trials)
        behind = {trial.text: self._behind(trial, trials) for trial in trials}
        rounds = min(len(trial.values) for trial in trials)
        bound = (1 + _DOUBT / rounds) * min(behind.values())
        for trial in trials:
            if behind[trial.text] > bound:
                trial.why = self.worse
                self._close(trial)
                self.tell(f"{trial.text}: {trial.why} in {len(trial.values)} turns")
        return self._loaded(trials)

    def _make_room(self) -> None:
        """Close the slowest until there is memory for another."""
        able = sorted(self._loaded(self.trials), key=self.cost)
        while able:
            largest = max(contestant.resident_bytes() for contestant in self.alive.values())
            if _available_bytes() >= _ROOM * largest:
                return
            trial = able.pop()
            trial.why = "behind, and there was no memory to keep it"
            self._close(trial)

    def _loaded(self, trials: Sequence[Trial]) -> list[Trial]:
        return [trial for trial in trials if trial.text in self.alive]

    def _close(self, trial: Trial) -> None:
        contestant = self.alive.pop(trial.text, None)
        if contestant is not None:
            contestant.close()


def _available_bytes() -> float:
    for line in (read_text(Path("/proc/meminfo")) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
