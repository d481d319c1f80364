"""Whether `ergo tune` finds the best setting, and in what time: against every other setting that there is.

    python benchmarks/tune.py [--batch 1,8,32] [--pairs N] [MODEL ...]

A line for each network and batch: what was chosen and in how many seconds, and the other setting that came nearest to
being better: the step time of the first over that of the second. Both are loaded side by side and step in turns, loaded
anew for each. Every setting that is not clearly behind is loaded, together with what was chosen, in N double pairs of
processes (each once before the other), and in up to 20 while the bound is within the 95 % interval of the median over
these; so the interval is one that was waited for. MISSED: the whole interval is above the bound; open: the bound is
still within it.

The host of a virtual machine moves its cores: what is best for two threads when they are near may take twice as long
when they are far (docs/benchmarks.md). So what counts is only what was measured while they were as near as when the
search ended; where they do not come back for two minutes, all of the case is done again. Engines take part that are
proved without minutes of compiling. Leave the machine to it.
"""

import argparse
import itertools
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
TURN_S, FEW, ROUNDS, MOST = 0.2, 3, 4, 20
HANG_S = 300.0
NEAR = 0.93  # chosen over other, in the better of two pairs of processes: more pairs could show the other to be better
AGAIN = 0.75  # the same, in one pair: another could show that
FAR = 0.5  # the same, in the first turn: none could
PATIENCE_S, PAUSE_S = 120.0, 2.0  # until the cores come back to where they were
ATTEMPTS = 6


class MovedError(Exception):
    """The cores do not come back to where they were in the search."""


@dataclass(frozen=True)
class Rival:
    """Another setting. ratios: the step time of what was chosen over its own, one for each double pair of processes;
    where it is clearly behind, that of its first pair alone."""

    spec: Spec
    ratios: list[float] = field(default_factory=list)

    @property
    def middle(self) -> float:
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """Of fewer pairs than an interval takes, which were clear enough, the ratio itself."""
        _, low, high = median_interval(self.ratios)
        return (self.middle, self.middle) if low is None or high is None else (low, high)

    @property
    def is_open(self) -> bool:
        low, high = self.interval
        return low <= SLOWER < high

    def __str__(self) -> str:
        low, high = self.interval
        spread = (
            f"{low:.3f} .. {high:.3f}, {len(self.ratios)} double pairs" if len(self.ratios) >= FEWEST else "first look"
        )
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
    """One network and batch. handover_s: as in the search."""

    def __init__(self, interrupt: Interrupt, found: Tuned):
        self.interrupt, self.chosen, self.handover_s = interrupt, found.spec, found.handover_s or handover()
        self.turned_away = 0

    @contextmanager
    def loaded(self, spec: Spec) -> Iterator[Contestant]:
        """The setting in a process of its own, after its first turn, which does not count."""
        bundle, _ = prepare(spec, ignored, self.interrupt)
        timed = replace(spec, trace_steps=0, budget=Budget(time_s=TURN_S))
        flags = ["--brief", *([str(bundle)] if bundle else [])]
        with tempfile.TemporaryDirectory() as folder:
            contestant = Contestant(timed, Path(folder) / "run", flags, self.interrupt)
            try:
                contestant.turn(HANG_S, float("inf"))
                yield contestant
            finally:
                contestant.close()

    def ratio(self, chosen: Contestant, other: Contestant, rounds: int) -> float:
        """Turn by turn; who begins, alternates."""
        found: list[float] = []
        since = time.monotonic()
        while len(found) < rounds and not (found and found[0] < FAR):
            if have_moved(handover(), self.handover_s):
                if time.monotonic() - since > PATIENCE_S:
                    raise MovedError
                time.sleep(PAUSE_S)
                continue
            order = (chosen, other) if len(found) % 2 else (other, chosen)
            times = {one: one.turn(HANG_S, float("inf")) for one in order}
            if have_moved(handover(), self.handover_s):
                self.turned_away += 1
                continue
            since = time.monotonic()
            found.append(times[chosen] / times[other])
        return statistics.median(found)

    def look(self, others: list[Spec]) -> list[Rival]:
        """Of each other setting a ratio, from a few turns; one that fails is left out, and said."""
        found = []
        with self.loaded(self.chosen) as best:
            for spec in others:
                try:
                    with self.loaded(spec) as other:
                        found.append(Rival(spec, [self.ratio(best, other, FEW)]))
                except (FailedError, UnavailableError) as error:
                    print(f"# {describe_setting(spec)} is left out: {error}", flush=True)
        return found

    def rivals(self, others: list[Spec], pairs: int) -> list[Rival]:
        """The other settings, each in as many pairs of processes as it takes to be clear."""
        first = self.look(others)
        again = {
            describe_setting(rival.spec): rival for rival in self.look([r.spec for r in first if r.middle > AGAIN])
        }
        found = []
        for rival in first:
            second = again.get(describe_setting(rival.spec), rival)
            if max(rival.middle, second.middle) <= NEAR:
                found.append(max(rival, second, key=lambda look: look.middle))
                continue
            rival = Rival(rival.spec)
            while len(rival.ratios) < pairs or (rival.is_open and len(rival.ratios) < MOST):
                rival.ratios.append(self.in_both_orders(rival.spec))
            found.append(rival)
        return found

    def in_both_orders(self, spec: Spec) -> float:
        """Of two processes that run the same, the one that was loaded first takes 3 to 5 % longer on some machines."""
        with self.loaded(self.chosen) as chosen, self.loaded(spec) as other:
            first = self.ratio(chosen, other, ROUNDS)
        with self.loaded(spec) as other, self.loaded(self.chosen) as chosen:
            return math.sqrt(first * self.ratio(chosen, other, ROUNDS))


def attempt(spec: Spec, others: list[Spec], pairs: int, interrupt: Interrupt) -> tuple[Tuned, Bench, list[Rival]]:
    """A search and what it is compared with, while the cores do not move for long."""
    found = tune.tuned(
        spec, goal="time", engines=[], interrupt=interrupt, tell=lambda _: None, limit_s=LONGEST_S, anew=True
    )
    bench = Bench(interrupt, found)
    return found, bench, bench.rivals([one for one in others if one != found.spec], pairs)


def measure(model: str, batch: int, pairs: int) -> str:
    """How it ended: held, open or MISSED."""
    spec = Spec(model=model, engine="torch", batch=batch)
    with Interrupt() as interrupt:
        everything = settings(spec)  # proves the engines, which is not part of the search
        for _ in range(ATTEMPTS):
            try:
                found, bench, rivals = attempt(spec, everything, pairs, interrupt)
                break
            except MovedError:
                print(f"# {model} batch {batch}: the cores moved and did not come back; again", flush=True)
        else:
            print(f"{model} batch {batch}: open", flush=True)
            return "open"
    nearest = max(rivals, key=lambda rival: (rival.interval[0] > SLOWER, rival.is_open, rival.middle))
    missed = nearest.interval[0] > SLOWER or found.took_s > LONGEST_S
    ended = "MISSED" if missed else "open" if nearest.is_open else "held"
    print(
        f"{model} batch {batch}: {describe_setting(found.spec)} in {found.took_s:.0f} s; of {len(rivals)} others the "
        f"nearest: {nearest}; cores {bench.handover_s * 1e9:.0f} ns apart, {bench.turned_away} rounds turned away: "
        f"{ended}",
        flush=True,
    )
    return ended


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--pairs", type=int, default=FEWEST, metavar="N", help=f"at least {FEWEST}, for an interval")
    parser.add_argument("models", nargs="*", default=[])
    chosen = parser.parse_args()
    batches = [int(batch) for batch in chosen.batch.split(",")]
    print(f"step time over that of any other setting, at most {SLOWER}; search at most {LONGEST_S:g} s", flush=True)
    pairs = max(FEWEST, chosen.pairs)
    ended = [measure(model, batch, pairs) for batch in batches for model in chosen.models or MODELS]
    print(f"of {len(ended)}: " + ", ".join(f"{ended.count(word)} {word}" for word in ("held", "open", "MISSED")))
    return 0 if ended.count("held") == len(ended) else 1


if __name__ == "__main__":
    sys.exit(main())
