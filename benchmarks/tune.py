"""Whether `ergo tune` finds the best setting, and in what time: against an exhaustive search over the same settings.

    python benchmarks/tune.py [--batch 1,8,32] [--turns SECONDS] [MODEL ...]

A line for each network and batch: what was chosen and in how many seconds, and the best of an exhaustive search. That
runs every setting, and the three quickest once more; the best is that with the lowest mean. Then the chosen one and
the best run in turn for so many seconds: the step time of the first over that of the second, as the median of the turns
and its 95 % interval. MISSED: the whole interval is above the bound. Engines take part that are proved without minutes
of compiling.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ergometer.analyze.statistics import FEWEST, median_interval
from ergometer.core import registry
from ergometer.core.spec import Budget, Spec
from ergometer.run import tune
from ergometer.run.environment import probe_of
from ergometer.run.interrupt import Interrupt
from ergometer.run.parent import run_spec
from ergometer.run.prove import proof_of
from ergometer.run.search import settings_of
from ergometer.run.tuned import describe_setting
from ergometer.store.database import Store

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
TIME_S = 0.5


def step_time(spec: Spec, store: Store, interrupt: Interrupt) -> float:
    timed = replace(spec, trace_steps=0, period_s=0.1, budget=Budget(time_s=TIME_S))
    record = run_spec(timed, store, lambda _: None, interrupt, brief=True)
    if record.status == "interrupted":
        raise KeyboardInterrupt
    return record.metrics["step_time"].value if record.status == "ok" else math.inf


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


def measure(model: str, batch: int, turns_s: float) -> tuple[bool, bool]:
    """Whether it is within the bounds: by the median, and as far as the interval can tell."""
    spec = Spec(model=model, engine="torch", batch=batch)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store, Interrupt() as interrupt:
        everything = settings(spec)  # proves the engines, which is not part of the search
        chosen = tune.tuned(
            spec, goal="time", engines=[], interrupt=interrupt, tell=lambda _: None, limit_s=LONGEST_S, anew=True
        )

        def seconds(one: Spec) -> float:
            return step_time(one, store, interrupt)

        times = [([seconds(one)], number) for number, one in enumerate(everything)]
        again = [
            (statistics.mean([*tried, seconds(everything[number])]), number) for tried, number in sorted(times)[:3]
        ]
        best = everything[min(again)[1]]
        ratios: list[float] = []
        begun = time.monotonic()
        while best != chosen.spec and (len(ratios) < FEWEST or time.monotonic() - begun < turns_s):
            ratios.append(seconds(chosen.spec) / seconds(best))
    middle, low, high = median_interval(ratios) if ratios else (1.0, 1.0, 1.0)
    assert low is not None and high is not None
    held = low <= SLOWER and chosen.took_s <= LONGEST_S
    said = f"{middle:.3f} ({low:.3f} .. {high:.3f}, {len(ratios)} turns)" if ratios else "the same"
    print(
        f"{model} batch {batch}: {describe_setting(chosen.spec)} in {chosen.took_s:.0f} s; best of "
        f"{len(everything)}: {describe_setting(best)}; {said}{'' if held else ' MISSED'}",
        flush=True,
    )
    return held and middle <= SLOWER, held


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--turns", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("models", nargs="*", default=[])
    chosen = parser.parse_args()
    batches = [int(batch) for batch in chosen.batch.split(",")]
    print(f"step time over that of the best, at most {SLOWER}; search at most {LONGEST_S:g} s", flush=True)
    held = [measure(model, batch, chosen.turns) for batch in batches for model in chosen.models or MODELS]
    by_median, by_interval = (sum(column) for column in zip(*held, strict=True))
    print(
        f"within {SLOWER} and {LONGEST_S:g} s: {by_median} of {len(held)} by the median, {by_interval} by the interval"
    )
    return 0 if by_interval == len(held) else 1


if __name__ == "__main__":
    sys.exit(main())
