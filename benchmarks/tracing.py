"""What op tracing adds to a step, against a plain torch.profiler on the same steps.

python benchmarks/tracing.py
"""

import statistics
import sys

from torch.profiler import ProfilerActivity, profile

from _loaded import load
from ergometer.analyze.statistics import median_interval

ROUNDS = 40


def mean_step_ns(engine, steps: int) -> float:  # type: ignore[no-untyped-def]
    done = [engine.step() for _ in range(steps)]
    return sum(step.marks[-1] - step.marks[0] for step in done) / steps


def traced(engine, steps: int) -> float:  # type: ignore[no-untyped-def]
    spans = [span for span in engine.ops(steps) if span.kind == "step"]
    return sum(span.end_ns - span.start_ns for span in spans) / steps


def plain(engine, steps: int) -> float:  # type: ignore[no-untyped-def]
    with profile(activities=[ProfilerActivity.CPU]):
        return mean_step_ns(engine, steps)


def compare(name: str, batch: int, steps: int) -> None:
    engine = load(name, batch, threads=1)
    mean_step_ns(engine, steps)
    engine.ops(steps)
    ours, peers = [], []
    for number in range(ROUNDS):
        base = mean_step_ns(engine, steps)
        for tracer in (traced, plain) if number % 2 else (plain, traced):
            (ours if tracer is traced else peers).append(tracer(engine, steps) / base - 1)
    mine, peer = statistics.median(ours), statistics.median(peers)
    ratio, low, high = median_interval([(1 + a) / (1 + b) for a, b in zip(ours, peers, strict=True)])
    print(
        f"tracing.{name}: +{100 * mine:.1f} % of a step of batch {batch}, plain torch.profiler +{100 * peer:.1f} %, "
        f"ours / plain {ratio:.3f}, 95 % interval {low:.3f} .. {high:.3f} (at most 1)"
    )


def main() -> None:
    compare("lenet", 16, 20)
    compare("mobilenet_v2", 1, 3)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
