"""Whether `ergo tune` finds the best setting, and in what time: against an exhaustive search over the same settings.

    python benchmarks/tune.py [--batch 1,8,32] [MODEL ...]

A line for each network and batch: what was chosen and in how many seconds, what an exhaustive search calls best, and
the step time of the first over that of the second, each run anew in turn: the least of all runs of each, since what
disturbs a run only adds to it, and in brackets the medians. Where that is over the bound, both run more often, as a few
runs on a shared machine differ by more. Engines that take part are those that are proved without minutes of compiling.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median

from ergometer.core import registry
from ergometer.core.spec import Budget, Spec
from ergometer.run import tune
from ergometer.run.environment import probe_of
from ergometer.run.interrupt import Interrupt
from ergometer.run.parent import run_spec
from ergometer.run.prove import proof_of
from ergometer.store.database import Store

MODELS = (
    "lenet",
    "fc_only:depth=2,width=512",
    "conv_only:depth=4,width=64",
    "mobilenet_reduced",
    "resnet_reduced",
    "densenet40_12",
    "squeezenet",
    "nin",
    "char_cnn",
    "mobilenet_v2",
)
SLOWER, LONGEST_S = 1.03, 60.0
ROUNDS, MOST_ROUNDS, TIME_S = 5, 15, 2.0


def step_time(spec: Spec, store: Store, interrupt: Interrupt) -> float:
    timed = replace(spec, brief=True, trace_steps=0, period_s=0.1, budget=Budget(time_s=TIME_S))
    record = run_spec(timed, store, lambda _: None, interrupt)
    if record.status == "interrupted":
        raise KeyboardInterrupt
    return record.metrics["step_time"].value if record.status == "ok" else float("inf")


def settings(spec: Spec) -> list[Spec]:
    """All that the search could choose from."""
    found = []
    for name in registry.names("engines"):
        engine, own = registry.load("engines", name), replace(spec, engine=name)
        if engine.slow_start or spec.mode not in engine.modes or not probe_of(name, spec.device).ok:
            continue
        if name == "torch" or not proof_of(own).reason:
            found += [own, *tune.settings_of(own)]
    return found


def measure(model: str, batch: int) -> bool:
    spec = Spec(model=model, engine="torch", batch=batch)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store, Interrupt() as interrupt:
        everything = settings(spec)  # proves the engines, which is not part of the search
        chosen = tune.tuned(
            spec, goal="time", engines=[], interrupt=interrupt, tell=lambda _: None, limit_s=LONGEST_S, anew=True
        )
        times = {tune.describe_setting(one): step_time(one, store, interrupt) for one in everything}
        best = min(everything, key=lambda one: times[tune.describe_setting(one)])
        ratio, said = 1.0, "the same"
        if best != chosen.spec:
            ours, theirs = [], []
            while len(ours) < ROUNDS or (ratio > SLOWER and len(ours) < MOST_ROUNDS):
                ours.append(step_time(chosen.spec, store, interrupt))
                theirs.append(step_time(best, store, interrupt))
                ratio = min(ours) / min(theirs)
            said = f"{ratio:.3f} ({median(ours) / median(theirs):.3f} of {len(ours)} runs each)"
    held = ratio <= SLOWER and chosen.took_s <= LONGEST_S
    print(
        f"{model} batch {batch}: {tune.describe_setting(chosen.spec)} in {chosen.took_s:.0f} s; best of "
        f"{len(everything)}: {tune.describe_setting(best)}; {said}{'' if held else ' MISSED'}",
        flush=True,
    )
    return held


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("models", nargs="*", default=[])
    chosen = parser.parse_args()
    batches = [int(batch) for batch in chosen.batch.split(",")]
    print(f"step time over that of the best, at most {SLOWER}; search at most {LONGEST_S:g} s", flush=True)
    held = [measure(model, batch) for model in chosen.models or MODELS for batch in batches]
    print(f"{sum(held)} of {len(held)} within {SLOWER} and {LONGEST_S:g} s")
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
