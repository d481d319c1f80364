"""Settings compared by turns: each in a process of its own, all loaded, and one at a time steps for a moment.

What else happens on the device then slows all of them down alike; runs one after another differ by half on a shared
machine. The engines begin with their own defaults; those far behind are closed, and more settings of the others join,
the best engine's first; then, after some rounds, those of what is left. Several load at once and wait for their first
turns. After every round those are closed that are further behind than so few turns can be wrong by. The first rounds
tell apart what differs much and are short; later ones are thorough. The same setting may be some percent faster in one
process than in the next, so a few that are left are loaded in others after some rounds. Where cores move (handover.py),
what was found for short steps holds no longer until they are back, and the settings that were closed come back if there
is time; so do those that something else disturbed (neighbours.py) before they were closed.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ergometer.analyze.metrics import have_moved
from ergometer.core import registry
from ergometer.run.handover import lasting_handover_s
from ergometer.run.rounds import SURE, Rounds, behind, is_surely_above
from ergometer.run.search import AS_GOOD, FAR_BEHIND
from ergometer.run.search_loaded import FEWEST_ROUNDS, KEPT, LoadedSearch
from ergometer.run.tuned import Trial

_LONG_S = 0.3  # a step that takes longer does so by some percent at most where cores are further apart
_LOOKED_BACK = 5  # rounds, after which what was disturbed comes back
_LAP = 3  # thorough rounds, after which those that are left are loaded in other processes
_FEW, _AS_LONG = 0.2, 1.5  # of the time that is left, or of what a lap takes: what loading them may take
_REACH = 2.0  # times the best: what has been closed may be the best once cores have moved
_FOR_ROUNDS = 0.5  # of the time that is left then: what is left over for rounds
_MOST_ROUNDS = 200
_CLEAR = 1.5  # times the best in the first turn: it takes luck to turn out to be the best
_CLEAR_ROUNDS = 10  # for which there must be time, with all, if what is clearly behind is to stay
_DOUBT = 1.5  # divided by the number of turns: how far behind one may be and still turn out to be the best
_BY_CHANCE = "for comparison: how long its steps take is chance, in every process anew"


@dataclass(frozen=True, slots=True)
class Place:
    """How far apart the cores were, the rounds in which they were, and the settings that were left then."""

    handover_s: float | None
    rounds: Rounds
    left: list[Trial]


class SearchByTurns(LoadedSearch):
    def compare(self, first: Sequence[Trial]) -> list[Trial]:
        self.loaded, self.lasted_s, self.disturbed, self.alone_s = {}, {}, set(), 0.0
        self.rounds = Rounds()  # while the cores were where they are now
        self.elsewhere: list[Place] = []
        with tempfile.TemporaryDirectory(prefix="ergo-tune-") as folder:
            self.folder = Path(folder)
            try:
                left = self._where_rounds_suffice(self._in_turns(first))
            finally:
                for trial in self.trials:
                    self._close(trial)
        found = self._behind(left)
        order = sorted(self._eligible(left), key=lambda trial: found[trial.text])
        best = self.steadier(order) if order else None
        for trial in self.trials:
            ratios = self.rounds.ratios(trial.text, best.text) if best else []
            trial.ratio = statistics.median(ratios) if ratios else None
            trial.estimated = bool(trial.values) and trial.ratio is None
        return order

    def _in_turns(self, first: Sequence[Trial]) -> list[Trial]:
        self.handover_s = self._handover_s()
        # What a user has by itself is told as a ratio to the best, for which it takes some turns however far behind. It
        # is not chosen: chance decides, in every process anew, how long its steps take.
        self.plain = [trial for trial in first if self.steady(trial.spec) != trial.spec]
        left = self._near(self._enter([trial for trial in first if trial not in self.plain]))
        left = self._near([*left, *self._enter(self.taken(self.with_options(left)), left)])
        more = [*self.plain, *self.taken(self.with_fewer_threads(left))]
        left = self._left([*left, *self._enter(more, left, KEPT * self.limit_s)])
        for _ in range(_MOST_ROUNDS):
            left = self._affordable(self._undecided(left))
            if len(left) == 1 or len(self.rounds) == _LOOKED_BACK:
                left = self._with_disturbed(left)
            handover_s = self._handover_s(left)
            if handover_s is None:
                self.handover_s = None
            if len(left) < 2 or not self._fits(left):
                break
            if self.handover_s and handover_s and have_moved(self.handover_s, handover_s):
                moved = self._moved(left, handover_s)
                if moved is None:
                    break
                left = moved
            self.handover_s = handover_s
            left = self._round(left)
            if len(self.rounds) == FEWEST_ROUNDS:
                named = [trial for trial in left if trial not in self.plain]
                left = self._left([*left, *self._enter(self.taken(self.settings(named)), left, self._for_rounds_s)])
            laps, rest = divmod(len(self.rounds) - FEWEST_ROUNDS, _LAP)
            if len(left) > 1 and laps > 0 and not rest:
                left = self._in_other_processes(left)
        return left

    def _moved(self, left: list[Trial], handover_s: float) -> list[Trial] | None:
        """What is to be compared where the cores are now; None if there is no time for that."""
        self.rounds.drop_last()  # during which it happened
        before = next((place for place in self.elsewhere if not have_moved(place.handover_s, handover_s)), None)
        if before:
            closed = [trial for trial in before.left if trial.text not in self.loaded and not trial.failed]
        else:
            closed = self._within_reach(left, further=handover_s > (self.handover_s or 0.0))
        if self.rounds and not self._can_load(closed, left):
            return None
        self.elsewhere.append(Place(self.handover_s, self.rounds, left))
        left = self._begin_again(closed, left, "cores moved")
        if before:
            self._go_back_to(before)
        return left

    def _go_back_to(self, place: Place) -> None:
        """The cores are there again, so what was found there holds again."""
        self.elsewhere = [one for one in self.elsewhere if one is not place]
        self.rounds, self.handover_s = place.rounds, place.handover_s
        for trial in self.trials:
            trial.values = self.rounds.of(trial.text) or trial.values

    def _where_rounds_suffice(self, left: list[Trial]) -> list[Trial]:
        """What is left here, or where there were more rounds, if there were too few here."""
        most = max(self.elsewhere, key=lambda place: len(place.rounds), default=None)
        if most is None or len(left) == 1 or len(self.rounds) >= min(SURE, len(most.rounds)):
            return left
        self._go_back_to(most)
        return [trial for trial in most.left if not trial.failed]

    def _near(self, trials: Sequence[Trial]) -> list[Trial]:
        left = self.near(self._left(trials))
        for trial in trials:
            if trial.why:
                self._close(trial)
        return left

    def _handover_s(self, left: Sequence[Trial] = ()) -> float | None:
        """How far apart the cores are, or were when they last answered; None where the steps of these are so long that
        it does not matter."""
        if min(map(self.cost, left), default=0.0) > _LONG_S:
            return None
        found = lasting_handover_s(os.sched_getaffinity(0), self.handover_s, self._end)
        return self.handover_s if isinstance(found, str) else found

    def _within_reach(self, left: Sequence[Trial], *, further: bool) -> list[Trial]:
        """Those closed that may be the best now that cores lie nearer, or further apart, which slows several threads
        down and not one."""
        bound = _REACH * min(map(self.cost, left))
        closed = [trial for trial in self.trials if trial.why == self.worse and self.cost(trial) <= bound]
        return [trial for trial in closed if further or trial.spec.threads != 1]

    def _with_disturbed(self, left: Sequence[Trial]) -> list[Trial]:
        """With those that something else may have put behind, if there is time."""
        closed = [trial for trial in self.trials if trial.text in self.disturbed]
        closed = [trial for trial in closed if trial.why in (self.worse, FAR_BEHIND)]
        quickest = sorted(closed, key=lambda trial: trial.took_s)[:1]
        if not closed or not self._can_load(quickest, left):
            return list(left)
        self.disturbed.clear()
        return self._begin_again(closed, left, "something else used the CPU")

    def _begin_again(self, closed: Sequence[Trial], left: Sequence[Trial], why: str) -> list[Trial]:
        """Without the rounds so far, and with what is closed, which loads."""
        self.tell(f"{why}, so settings are compared anew")
        self.rounds = Rounds()
        for trial in left:
            trial.values = trial.values[-1:]
        for trial in closed:
            trial.why = ""
        return self._left([*left, *self._enter(sorted(closed, key=self.cost), left, self._for_rounds_s)])

    def _in_other_processes(self, left: Sequence[Trial]) -> list[Trial]:
        """The same, loaded anew, if that leaves time enough. Where free memory is in pieces, what is loaded first is
        slower by some percent, so nobody is always the first."""
        lap_s = _LAP * self._turns_s(left, thorough=True)
        longest_s = max(_FEW * (self.limit_s - self.took_s), _AS_LONG * lap_s)
        slow = any(registry.load("engines", trial.spec.engine).slow_start for trial in left)
        if slow or not self._can_load(left, thorough=True) or self._loading_s(left) > longest_s:
            return list(left)
        for trial in left:
            self._close(trial)
        for trial in self._load(left if len(self.rounds) // _LAP % 2 else left[::-1]):
            self._first_turn(trial)
        return self._left(left)

    @property
    def _for_rounds_s(self) -> float:
        """Of the time that is left now, what is left over for rounds when more settings load."""
        return _FOR_ROUNDS * (self.limit_s - self.took_s)

    def _can_load(self, trials: Sequence[Trial], others: Sequence[Trial] = (), *, thorough: bool = False) -> bool:
        """Whether there is time to load these, and for some rounds of them and of the others."""
        needed_s = self._loading_s(trials) + FEWEST_ROUNDS * self._turns_s([*trials, *others], thorough=thorough)
        return time.monotonic() + needed_s <= self._end

    def _round(self, trials: Sequence[Trial]) -> list[Trial]:
        """A turn of each, and nobody is always the first. A round for which there is not time enough does not count."""
        at = len(self.rounds) % len(trials) if trials else 0
        found: dict[str, float] = {}
        for trial in [*trials[at:], *trials[:at]]:
            if not self._fits([trial]):
                return self._left(trials)
            begun = time.monotonic()
            value = self._turn(trial, thorough=self._thorough)
            self.lasted_s[trial.text, self._thorough] = time.monotonic() - begun
            if value is not None:
                found[trial.text] = value
            elif not trial.failed:
                return self._left(trials)
        self.rounds.add(found)
        for trial in trials:
            trial.values += [found[trial.text]] if trial.text in found else []
        return self._left(trials)

    @property
    def _thorough(self) -> bool:
        """Whether turns are, by now."""
        return len(self.rounds) >= FEWEST_ROUNDS

    def _fits(self, trials: Sequence[Trial]) -> bool:
        return time.monotonic() + self._turns_s(trials, thorough=self._thorough) <= self._end

    def _behind(self, trials: Sequence[Trial]) -> dict[str, float]:
        """How many times the middle of them each takes; by the last turns, where there was no round of all."""
        if not trials:
            return {}
        shared = self.rounds.shared([trial.text for trial in trials])
        return behind(shared or [{trial.text: trial.values[-1] for trial in trials}])

    def _undecided(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that may be the best; the others are closed."""
        if not trials:
            return []
        found = self._behind(trials)
        best = min(self._eligible(trials), key=lambda trial: found[trial.text])
        shared = self.rounds.shared([trial.text for trial in trials])
        for trial in trials:
            ratios = self.rounds.ratios(trial.text, best.text)
            if trial in self.plain:
                out = len(ratios) >= FEWEST_ROUNDS
            else:
                bound = (1 + _DOUBT / max(1, len(shared))) * found[best.text]
                out = found[trial.text] > bound or is_surely_above(ratios, AS_GOOD)
            if out and trial is not best:
                self._drop(trial)
        return self._left(trials)

    def _eligible(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that may be chosen; what a user has by itself only if nothing else is left."""
        return [trial for trial in trials if trial not in self.plain] or list(trials)

    def _affordable(self, trials: Sequence[Trial]) -> list[Trial]:
        """The best of them, and no more than have time for a round. What is clearly behind is closed for the sake of
        more rounds of the others."""
        found = self._behind(trials)
        order = sorted(trials, key=lambda trial: found[trial.text])
        rounds = max(1, _CLEAR_ROUNDS - len(self.rounds))
        while len(order) > 2:
            clear = found[order[-1].text] > _CLEAR * found[order[0].text]
            if self._fits(order * rounds if clear else order):
                break
            self._drop(order.pop())
        return order

    def _drop(self, trial: Trial) -> None:
        trial.why = _BY_CHANCE if trial in self.plain else self.worse
        self._close(trial)
        self.tell(f"{trial.text}: {trial.why} in {len(trial.values)} turn{'s' if len(trial.values) > 1 else ''}")
