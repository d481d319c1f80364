"""Whether `ergo tune` finds the best setting, and in what time: against every other setting that it could have chosen.

    python benchmarks/tune.py [--batch 1,8,32] [--pairs N] [MODEL ...]

A line for each network and batch: what was chosen and in how many seconds, and the other setting that came nearest to
being better: the step time of the first over that of the second. Both are loaded side by side and step in turns. Two
processes that run the same may differ by half for as long as they live, so a setting that is not far behind is loaded
twice, and the nearest two are loaded anew, together with what was chosen, N times and, while the bound is within the
95 % interval of the median over these pairs, up to 15 times (so the interval is one that was waited for). MISSED: the
whole interval is above the bound. Engines take part that are proved without minutes of compiling. On two cores,
whatever else runs disturbs settings with two threads alone: leave the machine to it.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ergometer.analyze.statistics import FEWEST, median_interval
from ergometer.core import registry
from ergometer.core.errors import UnavailableError
from ergometer.core.spec import Budget, Spec
from ergometer.run import tune
from ergometer.run.environment import probe_of
from ergometer.run.interrupt import Interrupt
from ergometer.run.parent import prepare
from ergometer.run.prove import proof_of
from ergometer.run.search import ignored, settings_of
from ergometer.run.tuned import describe_setting
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
TURN_S, FEW, ROUNDS = 0.4, 3, 5
RIVALS, MOST = 2, 15
HANG_S = 300.0
NEAR = 0.9  # chosen over other, in the better of two pairs of processes: more pairs could show the other to be better
AGAIN = 0.6  # the same, in one pair: another could show that
FAR = 0.5  # the same, in the first turn: none could


@dataclass(frozen=True)
class Rival:
    """Another setting. ratios: the step time of what was chosen over its own, one for each pair of processes; where it
    is far enough behind, that of the better of its first pairs alone."""

    spec: Spec
    ratios: list[float]

    @property
    def middle(self) -> float:
        return statistics.median(self.ratios)

    @property
    def interval(self) -> tuple[float, float]:
        """Of one pair, which was clear enough, the ratio itself."""
        _, low, high = median_interval(self.ratios)
        return (self.middle, self.middle) if low is None or high is None else (low, high)

    @property
    def undecided(self) -> bool:
        low, high = self.interval
        return low <= SLOWER < high

    def __str__(self) -> str:
        low, high = self.interval
        spread = f"{low:.3f} .. {high:.3f}, {len(self.ratios)} pairs" if len(self.ratios) > 1 else "1 pair"
        return f"{describe_setting(self.spec)} {self.middle:.3f} ({spread})"


def settings(spec: Spec) -> list[Spec]:
    """All that the search could choose from."""
    found = []
    for name in registry.names("engines"):
        engine, own = registry.load("engines", name), replace(spec, engine=name)
        if engine.slow_start or spec.mode not in engine.modes or not probe_of(name, spec.device).ok:
            continue
        if name == "torch" or not proof_of(own).reason:
            found += [own, *settings_of(own)]
    return found


@contextmanager
def loaded(spec: Spec, interrupt: Interrupt) -> Iterator[Contestant]:
    """The setting in a process of its own, after its first turn, which does not count."""
    bundle, _ = prepare(spec, ignored, interrupt)
    timed = replace(spec, trace_steps=0, budget=Budget(time_s=TURN_S))
    with tempfile.TemporaryDirectory() as folder:
        contestant = Contestant(timed, Path(folder) / "run", ["--brief", *([str(bundle)] if bundle else [])], interrupt)
        try:
            contestant.turn(HANG_S, float("inf"))
            yield contestant
        finally:
            contestant.close()


def ratio(chosen: Contestant, other: Contestant, rounds: int) -> float:
    """Turn by turn; who begins, alternates."""
    found: list[float] = []
    while len(found) < rounds and not (found and found[0] < FAR):
        order = (chosen, other) if len(found) % 2 else (other, chosen)
        times = {one: one.turn(HANG_S, float("inf")) for one in order}
        found.append(times[chosen] / times[other])
    return statistics.median(found)


def first_look(chosen: Spec, others: list[Spec], interrupt: Interrupt) -> list[tuple[float, Spec]]:
    """Of each other setting a ratio, from a few turns; one that fails is left out, and said."""
    found = []
    with loaded(chosen, interrupt) as best:
        for spec in others:
            try:
                with loaded(spec, interrupt) as other:
                    found.append((ratio(best, other, FEW), spec))
            except (FailedError, UnavailableError) as error:
                print(f"# {describe_setting(spec)} is left out: {error}", flush=True)
    return found


def nearest(chosen: Spec, others: list[Spec], pairs: int, interrupt: Interrupt) -> Rival:
    """The setting that what was chosen is furthest behind, or least before."""
    looks = first_look(chosen, others, interrupt)
    looks += first_look(chosen, [spec for once, spec in looks if once > AGAIN], interrupt)
    best = {describe_setting(spec): (once, spec) for once, spec in sorted(looks, key=lambda look: look[0])}
    rivals = []
    for once, spec in sorted(best.values(), key=lambda look: look[0])[-RIVALS:]:
        rival = Rival(spec, [once] if once <= NEAR else [])
        while once > NEAR and (len(rival.ratios) < pairs or (rival.undecided and len(rival.ratios) < MOST)):
            with loaded(chosen, interrupt) as first, loaded(spec, interrupt) as second:
                rival.ratios.append(ratio(first, second, ROUNDS))
        rivals.append(rival)
    return max(rivals, key=lambda rival: (rival.interval[0] > SLOWER, rival.middle))


def measure(model: str, batch: int, pairs: int) -> tuple[bool, bool]:
    """Whether it is within the bounds: by the median, and as far as the interval can tell."""
    spec = Spec(model=model, engine="torch", batch=batch)
    with Interrupt() as interrupt:
        everything = settings(spec)  # proves the engines, which is not part of the search
        found = tune.tuned(
            spec, goal="time", engines=[], interrupt=interrupt, tell=lambda _: None, limit_s=LONGEST_S, anew=True
        )
        others = [one for one in everything if one != found.spec]
        rival = nearest(found.spec, others, pairs, interrupt)
    held = rival.interval[0] <= SLOWER and found.took_s <= LONGEST_S
    print(
        f"{model} batch {batch}: {describe_setting(found.spec)} in {found.took_s:.0f} s; of {len(others)} "
        f"others the nearest: {rival}{'' if held else ' MISSED'}",
        flush=True,
    )
    return held and rival.middle <= SLOWER, held


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--pairs", type=int, default=FEWEST, metavar="N", help=f"at least {FEWEST}, for an interval")
    parser.add_argument("models", nargs="*", default=[])
    chosen = parser.parse_args()
    batches = [int(batch) for batch in chosen.batch.split(",")]
    print(f"step time over that of any other setting, at most {SLOWER}; search at most {LONGEST_S:g} s", flush=True)
    pairs = max(FEWEST, chosen.pairs)
    held = [measure(model, batch, pairs) for batch in batches for model in chosen.models or MODELS]
    by_median, by_interval = (sum(column) for column in zip(*held, strict=True))
    print(
        f"within {SLOWER} and {LONGEST_S:g} s: {by_median} of {len(held)} by the median, {by_interval} by the interval"
    )
    return 0 if by_interval == len(held) else 1


if __name__ == "__main__":
    sys.exit(main())
