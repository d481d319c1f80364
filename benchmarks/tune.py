"""Whether `ergo tune` finds the best setting, and in what time: against an exhaustive search over the same settings.

    python benchmarks/tune.py [--batch 1,8,32] [MODEL ...]

A line for each network and batch: what was chosen and in how many seconds, and the best of an exhaustive search. That
runs every setting once, and then the two best and the chosen one four more times in turn. What is compared is the least
of all runs of each, since what disturbs a run only adds to it (in brackets: the medians). Engines take part that are
proved without minutes of compiling.
"""

import argparse
import math
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
ROUNDS, TIME_S = 4, 1.0


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
            found += [own, *tune.settings_of(own)]
    return found


def measure(model: str, batch: int) -> bool:
    spec = Spec(model=model, engine="torch", batch=batch)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store, Interrupt() as interrupt:
        everything = settings(spec)  # proves the engines, which is not part of the search
        chosen = tune.tuned(
            spec, goal="time", engines=[], interrupt=interrupt, tell=lambda _: None, limit_s=LONGEST_S, anew=True
        )
        times = {tune.describe_setting(one): [step_time(one, store, interrupt)] for one in everything}
        ours, *others = dict.fromkeys(
            [tune.describe_setting(chosen.spec), *sorted(times, key=lambda name: times[name])[:2]]
        )
        named = {tune.describe_setting(one): one for one in everything}
        for _ in range(ROUNDS):
            for name in (ours, *others):
                times[name].append(step_time(named[name], store, interrupt))
    best = min(others, key=lambda name: min(times[name]))
    ratio = min(times[ours]) / min(times[best])
    held = ratio <= SLOWER and chosen.took_s <= LONGEST_S
    print(
        f"{model} batch {batch}: {ours} in {chosen.took_s:.0f} s; best of {len(everything) - 1} others: {best}; "
        f"{ratio:.3f} ({median(times[ours]) / median(times[best]):.3f}){'' if held else ' MISSED'}",
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
