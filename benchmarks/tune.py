"""Whether `ergo tune` finds the best setting, and in what time: against every other setting that there is.

    python benchmarks/tune.py [--batch 1,8,32] [--times N] [MODEL ...]

A line for each network and batch: what was chosen and in how many seconds, and the other setting that came nearest to
being better: the step time of the first over that of the second. Side by side with what was chosen, some others at once
are loaded and step in turns. Every setting that is not clearly behind is loaded anew, together with what was chosen, N
times in both orders, and up to 12 times while the bound is within the 95 % interval of the median over these; so the
interval is one that was waited for. What is behind three times need not go on. MISSED: the whole interval is above the
bound; open: the bound is still within it.

The host of a virtual machine moves its cores: what is best for two threads when they are near may take twice as long
when they are far (docs/benchmarks.md). So what counts is only what was measured while they were as near as when the
search ended. Where they stay elsewhere, there is another search for that distance; the first that has been compared
with all others counts. Rounds in which something else used the cores do not count either, but leave the machine to it.
Engines take part that are proved without minutes of compiling.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ergometer.analyze.metrics import have_moved
from ergometer.analyze.statistics import FEWEST, median_interval
from ergometer.core import registry
from ergometer.core.errors import UnavailableError
from ergometer.core.spec import Budget, Spec
from ergometer.run import tune
from ergometer.run.environment import probe_of
from ergometer.run.handover import handover_s
from ergometer.run.interrupt import Interrupt
from ergometer.run.limit import available_bytes
from ergometer.run.parent import prepare
from ergometer.run.prove import proof_of
from ergometer.run.search import ignored, told
from ergometer.run.tuned import Tuned, describe_setting
from ergometer.run.turns import Contestant, FailedError

MODELS = (
    "lenet",
    "fc_only:depth=2,width=512",
    "conv_only:depth=4,width=64",
    "dwconv_only:depth=4,width=64",
    "mentee",
    "mobilenet_reduced",
    "resnet_reduced",
    "char_cnn",
    "densenet40_12",
    "mobilenet_v2",
)
SLOWER, LONGEST_S = 1.03, 60.0
TURN_S, FEW, ROUNDS, MOST = 0.1, 3, 2, 12
HANG_S = 300.0
NEAR = 0.93  # chosen over other, in the better of two pairs of processes: more pairs could show the other to be better
AGAIN = 0.85  # the same, in one pair: another could show that
FAR = 0.5  # the same, in the first turn: none could
BEHIND, TIMES = 1.0, 3  # the same, each of so many times in both orders: more could not
AT_ONCE, ROOM = 5, 2.0  # others that are loaded at once, and the memory for each, times what was chosen has taken
PATIENCE_S, PAUSE_S = 60.0, 1.0  # until the cores come back to where they were
LONGEST_CASE_S = 2400.0


class MovedError(Exception):
    """The cores stay elsewhere than in the search."""


@dataclass
class Rival:
    """Another setting. The step time of what was chosen over its own: in one pair of processes (looks, at most two) and
    each time in both orders (ratios); none of the latter where it is clearly behind."""

    spec: Spec
    looks: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    @property
    def middle(self) -> float:
        return statistics.median(self.ratios) if self.ratios else max(self.looks)

    def wants(self, times: int) -> bool:
        """Whether it is to be compared in both orders once more."""
        clear = max(self.looks) <= NEAR or (len(self.ratios) >= TIMES and max(self.ratios) < BEHIND)
        return not clear and (len(self.ratios) < times or (self.is_open and len(self.ratios) < MOST))

    @property
    def interval(self) -> tuple[float, float]:
        """Of fewer than an interval takes, which were clear enough, the range; of one look, the ratio itself."""
        if len(self.ratios) < FEWEST:
            return min(self.ratios, default=self.middle), max(self.ratios, default=self.middle)
        _, low, high = median_interval(self.ratios)
        return (self.middle, self.middle) if low is None or high is None else (low, high)

    @property
    def is_open(self) -> bool:
        low, high = self.interval
        return low <= SLOWER < high

    def __str__(self) -> str:
        low, high = self.interval
        spread = f"{low:.3f} .. {high:.3f}, {len(self.ratios)} times" if self.ratios else "first look"
        return f"{describe_setting(self.spec)} {self.middle:.3f} ({spread})"


def settings(spec: Spec) -> list[Spec]:
    """Every engine with every choice of its options that computes the same in the same place, and all or one thread."""
    found = []
    for name in registry.names("engines"):
        engine, own = registry.load("engines", name), replace(spec, engine=name)
        if engine.slow_start or spec.mode not in engine.modes or not probe_of(name, spec.device).ok:
            continue
        if name != "torch" and proof_of(own).reason:
            continue
        options = {name: values for name, values in engine.options.items() if name not in ("precision", "accelerate")}
        for values in itertools.product(*options.values()):
            chosen = own
            for option, value in zip(options, values, strict=True):
                chosen = told(chosen, option, value)
            found += [chosen, replace(chosen, threads=1)]
    return found


def handover() -> float:
    found = handover_s(os.sched_getaffinity(0))
    if isinstance(found, str):
        raise SystemExit(f"how far the cores are apart cannot be told: {found}.")
    return found


class Bench:
    """What a search chose, and the others. handover_s: as in the search; None if the cores may lie anywhere."""

    def __init__(self, found: Tuned, others: list[Spec], interrupt: Interrupt):
        self.found, self.interrupt = found, interrupt
        self.chosen, self.handover_s = found.spec, found.handover_s
        self.rivals = [Rival(one) for one in others if one != found.spec]
        self.turned_away = 0
        self.at_once = 1  # others that are loaded beside what was chosen

    @property
    def place(self) -> str:
        return "anywhere" if self.handover_s is None else f"{self.handover_s * 1e9:.0f} ns apart"

    @contextmanager
    def loaded(self, specs: Sequence[Spec]) -> Iterator[list[Contestant]]:
        """Each setting in a process of its own. They load at once and have their first turns, which do not count, in
        this order."""
        bundles = [prepare(spec, ignored, self.interrupt)[0] for spec in specs]
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            found = []
            for number, (spec, bundle) in enumerate(zip(specs, bundles, strict=True)):
                timed = replace(spec, trace_steps=0, budget=Budget(time_s=TURN_S))
                flags = ["--brief", *([str(bundle)] if bundle else [])]
                found.append(Contestant(timed, Path(folder) / str(number), flags, self.interrupt))
                stack.callback(found[-1].close)
            for one in found:
                one.wait_until_loaded(HANG_S, math.inf)
            for one in found:
                one.turn(HANG_S, math.inf)
            yield found

    def ratios(
        self, chosen: Contestant, others: Sequence[Contestant], rounds: int, *, thorough: bool = False
    ) -> list[float]:
        """Of what was chosen over each of the others, turn by turn; nobody is always the first, and what is far behind
        takes no more turns."""
        found: dict[Contestant, list[float]] = {one: [] for one in others}
        since, count = time.monotonic(), 0
        while wanting := [one for one, seen in found.items() if not seen or (len(seen) < rounds and max(seen) >= FAR)]:
            if have_moved(handover(), self.handover_s):
                if time.monotonic() - since > PATIENCE_S:
                    raise MovedError
                time.sleep(PAUSE_S)
                continue
            everyone = [chosen, *wanting]
            at = count % len(everyone)
            times = {one: one.turn(HANG_S, math.inf, thorough=thorough) for one in [*everyone[at:], *everyone[:at]]}
            disturbed = any(one.disturbed for one in everyone)
            if disturbed or have_moved(handover(), self.handover_s):
                self.turned_away += 1
                if disturbed and time.monotonic() - since > LONGEST_CASE_S:
                    raise SystemExit("something else uses the cores: leave them to this benchmark.")
                continue
            since, count = time.monotonic(), count + 1
            for one in wanting:
                found[one].append(times[chosen] / times[one])
        return [statistics.median(seen) for seen in found.values()]

    def go_on(self, times: int) -> None:
        """Until each of the others is clear; where the cores move before, it can go on later."""
        self.look([rival for rival in self.rivals if not rival.looks])
        self.look([rival for rival in self.rivals if len(rival.looks) == 1 and rival.middle > AGAIN])
        while wanting := [rival for rival in self.rivals if rival.wants(times)]:
            for first in range(0, len(wanting), self.at_once):
                some = wanting[first : first + self.at_once]
                for rival, ratio in zip(some, self.in_both_orders(some), strict=True):
                    rival.ratios.append(ratio)

    def look(self, rivals: list[Rival]) -> None:
        """At each for a few turns, at as many at once as there is memory for."""
        if not rivals:
            return
        with self.loaded([self.chosen]) as (best,):
            self.at_once = max(1, min(AT_ONCE, int(available_bytes() / (ROOM * best.resident_bytes()))))
            for first in range(0, len(rivals), self.at_once):
                self.look_with(best, rivals[first : first + self.at_once])

    def look_with(self, best: Contestant, rivals: list[Rival]) -> None:
        """One that fails is left out, and said."""
        try:
            with self.loaded([rival.spec for rival in rivals]) as others:
                for rival, ratio in zip(rivals, self.ratios(best, others, FEW), strict=True):
                    rival.looks.append(ratio)
        except (FailedError, UnavailableError) as error:
            if len(rivals) > 1:
                for rival in rivals:
                    self.look_with(best, [rival])
            else:
                self.rivals.remove(rivals[0])
                print(f"# {describe_setting(rivals[0].spec)} is left out: {error}", flush=True)

    def in_both_orders(self, rivals: Sequence[Rival]) -> list[float]:
        """Of two processes that run the same, the one that was loaded first takes 3 to 5 % longer on some machines."""
        specs = [self.chosen, *(rival.spec for rival in rivals)]
        with self.loaded(specs) as (chosen, *others):
            first = self.ratios(chosen, others, ROUNDS, thorough=True)
        with self.loaded(specs[::-1]) as (*others, chosen):
            then = self.ratios(chosen, others[::-1], ROUNDS, thorough=True)
        return [math.sqrt(one * other) for one, other in zip(first, then, strict=True)]


def bench_of(spec: Spec, others: list[Spec], times: int, interrupt: Interrupt) -> Bench | str:
    """A search, and what it chose compared with the others, or why that did not end; a search of its own for each
    distance of the cores that lasts, and the first that is through counts."""
    benches: list[Bench] = []
    started = time.monotonic()
    while time.monotonic() - started < LONGEST_CASE_S:
        now_s = handover()
        bench = next((one for one in benches if not have_moved(one.handover_s, now_s)), None)
        if bench is None:
            time.sleep(PAUSE_S)
            if have_moved(handover(), now_s):  # that was a moment, which is not worth a search
                continue
            found = tune.tuned(
                spec, goal="time", engines=[], interrupt=interrupt, tell=lambda _: None, limit_s=LONGEST_S, anew=True
            )
            bench = next((one for one in benches if not have_moved(one.handover_s, found.handover_s)), None)
            if bench is None:
                bench = Bench(found, others, interrupt)
                benches.append(bench)
        try:
            bench.go_on(times)
            return bench if bench.rivals else "nothing could be compared with what was chosen"
        except MovedError:
            print(f"# the cores are no longer {bench.place}", flush=True)
        except FailedError as error:
            return str(error)
    return f"the cores moved for {LONGEST_CASE_S:g} s"


def measure(model: str, batch: int, times: int) -> str:
    """How it ended: held, open or MISSED."""
    spec = Spec(model=model, engine="torch", batch=batch)
    with Interrupt() as interrupt:
        everything = settings(spec)  # proves the engines, which is not part of the search
        bench = bench_of(spec, everything, times, interrupt)
    if isinstance(bench, str):
        print(f"{model} batch {batch}: open, {bench}", flush=True)
        return "open"
    found, rivals = bench.found, bench.rivals
    nearest = max(rivals, key=lambda rival: (rival.interval[0] > SLOWER, rival.is_open, rival.middle))
    missed = nearest.interval[0] > SLOWER or found.took_s > LONGEST_S
    ended = "MISSED" if missed else "open" if nearest.is_open else "held"
    print(
        f"{model} batch {batch}: {describe_setting(found.spec)} in {found.took_s:.0f} s; of {len(rivals)} others the "
        f"nearest: {nearest}; cores {bench.place}, {bench.turned_away} rounds turned away: "
        f"{ended}",
        flush=True,
    )
    return ended


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--times", type=int, default=FEWEST, metavar="N", help=f"at least {FEWEST}, for an interval")
    parser.add_argument("models", nargs="*", default=[])
    chosen = parser.parse_args()
    batches = [int(batch) for batch in chosen.batch.split(",")]
    print(f"step time over that of any other setting, at most {SLOWER}; search at most {LONGEST_S:g} s", flush=True)
    times = max(FEWEST, chosen.times)
    ended = [measure(model, batch, times) for batch in batches for model in chosen.models or MODELS]
    print(f"of {len(ended)}: " + ", ".join(f"{ended.count(word)} {word}" for word in ("held", "open", "MISSED")))
    return 0 if ended.count("held") == len(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
