"""Settings that are loaded side by side, each in a process of its own: which load when, and which make room."""

import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ergometer.core import registry
from ergometer.core.errors import ErgoError
from ergometer.core.spec import Budget
from ergometer.run.limit import available_bytes
from ergometer.run.search import Search
from ergometer.run.tuned import Trial
from ergometer.run.turns import Contestant, FailedError
from ergometer.run.worker import THOROUGH_MOMENTS

_TURN_S = 0.1
_USED = 0.97  # of the time: workers with gigabytes take a moment to end
KEPT = 0.4  # of the time: what is left over for rounds by settings that are rarely the best
FEWEST_ROUNDS = 3  # before settings of what is left are tried and turns are thorough, and for which time is left over
_SLOWER = 1.2  # times its first: what a step takes, for all that is known before
_LONGER = 1.5  # times what the others took: the time that a first turn may take
_ROOM = 2.0  # times the largest so far: memory that is left free for another
_LOADING_BYTES = 1e9  # that one may take until it has loaded
_AT_ONCE = 3  # times the cores: how many load at once, so that no core waits for the slowest
_NO_ROOM = "there was no memory for it beside others"


class NoRoomError(ErgoError):
    """There is not memory for two settings at once."""


class LoadedSearch(Search):
    """loaded: by setting. lasted_s: the last turn of a setting, thorough or not. disturbed: in whose turns something
    else used the cores. alone_s: that the first took to load; nothing takes much less, however many load at once."""

    folder: Path
    loaded: dict[str, Contestant]
    lasted_s: dict[tuple[str, bool], float]
    disturbed: set[str]
    alone_s: float

    def _enter(self, trials: Sequence[Trial], others: Sequence[Trial] = (), kept_s: float = 0.0) -> list[Trial]:
        """They load, some at once, and each has its first turn, in its share of the time, unless it is the first of
        all. With others there already, time is left over for some rounds, and so much at least."""
        rounds_s = max(kept_s, FEWEST_ROUNDS * self._turns_s(sorted(others, key=self.cost)[:2], thorough=False))
        waiting = list(trials)
        while waiting and self._make_room():
            group = self._next_group(waiting, rounds_s)
            if not group:
                break
            loaded = self._load(group, len(group) * self._longest_s(group, len(group) + len(waiting)))
            while loaded:
                trial = loaded.pop(0)
                value = self._first_turn(trial, self._longest_s([trial], 1 + len(loaded) + len(waiting)))
                trial.values = trial.values if value is None else [value]
                trial.estimated = True
                self.say(trial)
                if loaded and not self._has_room():  # they load again when there is
                    for other in loaded:
                        self._close(other)
                    waiting, loaded = loaded + waiting, []
        for trial in waiting:
            trial.why = _NO_ROOM
        self.taken([trial for trial in waiting if trial not in self.trials])
        return [trial for trial in self._left(trials) if trial.text in self.loaded]

    def _next_group(self, waiting: list[Trial], kept_s: float) -> list[Trial]:
        """Taken from those that wait: as many as load at once, with so much time left over. The very first loads alone,
        since it tells what the others may need, and so does what compiles for minutes."""
        room = int(available_bytes() // max(_LOADING_BYTES, self._largest_bytes()))
        at_once = _AT_ONCE * len(os.sched_getaffinity(0)) if self._any_measured else 1
        most, group = max(1, min(at_once, room - 1)), list[Trial]()
        while waiting and len(group) < most:
            needed_s = kept_s + self._loading_s([*group, waiting[0]])
            slow = any(registry.load("engines", trial.spec.engine).slow_start for trial in [*group, waiting[0]])
            if group and (slow or self.took_s + needed_s > self.limit_s):
                break
            trial = waiting.pop(0)
            if self.has_time(trial, needed_s):
                group.append(trial)
        return group

    def _loading_s(self, trials: Sequence[Trial]) -> float:
        """Seconds until all of these have loaded and had their first turns."""
        return max(self.alone_s, sum(map(self.needs, trials))) if trials else 0.0

    def _longest_s(self, trials: Sequence[Trial], count: int) -> float:
        """Seconds that any of these may take to load, or for its first turn, if so many share what is left."""
        if not self._any_measured:
            return math.inf
        share_s = ((1 - KEPT) * self.limit_s - self.took_s) / count
        seen_s = max(other.took_s for other in self.trials if other.values)
        return max(share_s, _LONGER * seen_s, *(self.needs(trial) for trial in trials))

    @property
    def _any_measured(self) -> bool:
        return any(trial.values for trial in self.trials)

    def _load(self, trials: Sequence[Trial], longest_s: float = math.inf) -> list[Trial]:
        """Those of them that have loaded, all at once, since loading mostly keeps one core busy."""
        ready = [(trial, self.make_ready(trial)) for trial in trials]
        begun = heard_at = time.monotonic()
        for trial, bundle in ready:
            if not trial.failed:
                self.loaded[trial.text] = self._contestant(trial, bundle)
        for trial in trials:
            try:
                if not trial.failed:
                    end_by = min(heard_at + self.hang_s, begun + longest_s, self._end)
                    self.loaded[trial.text].wait_until_loaded(self.hang_s, end_by)
                    heard_at = time.monotonic()
            except FailedError as error:
                self._put_out(trial, error)
        loaded = [trial for trial in trials if trial.text in self.loaded]
        took_s = time.monotonic() - begun
        self.alone_s = self.alone_s or (took_s if loaded else 0.0)
        for trial in trials:
            trial.took_s = took_s / len(trials)
            if trial not in loaded:
                self.say(trial)
        return loaded

    def _contestant(self, trial: Trial, bundle: Path | None) -> Contestant:
        spec = replace(trial.spec, trace_steps=0, budget=Budget(time_s=_TURN_S))
        # torch is proved in no precision: whether it learns is checked.
        brief = [] if spec.engine == "torch" and "precision" in spec.options else ["--brief"]
        place = self.folder / str(len(list(self.folder.iterdir())))
        flags = brief + ([str(bundle)] if bundle else [])
        return Contestant(spec, place, flags, self.interrupt)

    def _first_turn(self, trial: Trial, longest_s: float = math.inf) -> float | None:
        begun = time.monotonic()
        value = self._turn(trial, longest_s)
        trial.took_s += time.monotonic() - begun
        return value

    def _turn(self, trial: Trial, longest_s: float = math.inf, *, thorough: bool = False) -> float | None:
        """What a step takes; None if it has failed."""
        contestant = self.loaded[trial.text]
        try:
            step_s = contestant.turn(self.hang_s, min(time.monotonic() + longest_s, self._end), thorough=thorough)
            if contestant.disturbed:
                self.disturbed.add(trial.text)
            return step_s
        except FailedError as error:
            self._put_out(trial, error)
            return None

    def _put_out(self, trial: Trial, error: FailedError) -> None:
        """It has failed; unless the time is over, which is no failure of what is known."""
        self._close(trial)
        if not trial.values or time.monotonic() < self._end:
            trial.why, trial.failed = str(error), True

    def _turns_s(self, trials: Sequence[Trial], *, thorough: bool) -> float:
        """Seconds that a turn of each will take: what its last such took, or at least takes."""
        at_least_s = THOROUGH_MOMENTS * _TURN_S if thorough else _TURN_S
        return sum(
            self.lasted_s.get((trial.text, thorough), max(at_least_s, _SLOWER * trial.values[-1])) for trial in trials
        )

    @property
    def _end(self) -> float:
        return self.started + _USED * self.limit_s

    def _left(self, trials: Sequence[Trial]) -> list[Trial]:
        return [trial for trial in trials if trial.values and not trial.why]

    def _make_room(self) -> bool:
        """Close the slowest until there is memory for another; False if that would end a comparison that has begun."""
        able = sorted((trial for trial in self._left(self.trials) if trial.text in self.loaded), key=self.cost)
        while not self._has_room():
            if len(able) <= 2 and self.lasted_s:
                return False
            if len(able) < 2:
                raise NoRoomError("there is not memory for two settings at once")
            trial = able.pop()
            trial.why = _NO_ROOM
            self._close(trial)
        return True

    def _has_room(self) -> bool:
        return not self.loaded or available_bytes() >= _ROOM * self._largest_bytes()

    def _largest_bytes(self) -> int:
        return max((contestant.resident_bytes() for contestant in self.loaded.values()), default=0)

    def _close(self, trial: Trial) -> None:
        contestant = self.loaded.pop(trial.text, None)
        if contestant is not None:
            contestant.close()
