"""Runs that were never made: a store with whatever a page must be able to show."""

from pathlib import Path

import numpy as np

from ergometer.core.record import Metric, Record
from ergometer.core.sensor import Channel
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.store.database import Store
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

S = 1_000_000_000
HOST = {"name": "planted", "processor": "a processor", "cores": 2, "memory_bytes": 4e9, "versions": {"ergometer": "0"}}
PARTS = {"parameters": 1.4e6, "gradients": 1.4e6, "activations": 4e6, "baseline": 3e8, "other": 1e7}


def record_of(run: str, spec: Spec, step_s: float = 0.01, *, warnings: tuple[str, ...] = ()) -> Record:
    metrics = {
        "step_time": Metric(value=step_s, unit="s", n=100, low=step_s * 0.99, high=step_s * 1.01),
        "throughput": Metric(value=spec.batch / step_s, unit="samples/s", n=100),
        "energy_per_step": Metric(value=0.02, unit="J", n=100, source="estimated", note="by a power model"),
        "peak_memory": Metric(value=3.2e8, unit="B", source="counter"),
        "parameters": Metric(value=349_980, unit="params", source="counter"),
        "forward_time": Metric(value=step_s * 0.4, unit="s", n=100),
        "backward_time": Metric(value=step_s * 0.6, unit="s", n=100),
        **{f"cpu_utilisation.{core}": Metric(value=50.0 + core, unit="%", source="counter") for core in range(2)},
        **{f"memory.{name}": Metric(value=value, unit="B", source="counter") for name, value in PARTS.items()},
    }
    absent = {"temperature": "thermal: no thermal zone"}
    return Record(
        id=run,
        spec=spec,
        status="ok",
        started_at=f"2026-11-01T00:00:00.{run[-3:]:0>3}+00:00",
        host=HOST,
        metrics=metrics,
        absent=absent,
        warnings=warnings,
    )


def plant(
    home: Path,
    run: str = "20261101-000000-aaaa",
    *,
    spec: Spec | None = None,
    seconds: int = 10,
    channels: int = 8,
    prefix: str = "",
    step_s: float = 0.01,
) -> Record:
    """A run of that many seconds, sampled at 100 Hz on so many channels, the first of them power."""
    record = record_of(run, spec or Spec(model="lenet", batch=16), step_s)
    folder = home / "runs" / run
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    count = seconds * 100
    times = np.arange(count, dtype=np.int64) * (S // 100) + 5 * S
    values = random.normal(5, 0.5, (count, channels)).cumsum(axis=0) % 10
    named = [f"{prefix}power.board", f"{prefix}temperature.soc", *(f"cpu.busy.{core}" for core in range(channels))]
    units = ["W", "°C", *("s" for _ in range(channels))]
    made = tuple(
        Channel(name=name, unit=unit, kind="counter" if unit == "s" else "gauge")
        for name, unit in zip(named[:channels], units, strict=False)
    )
    values[:, 2:] = (random.random((count, max(0, channels - 2))) * 0.01).cumsum(axis=0)
    Samples((Timeline(times, made, values),)).save(folder / "samples.npz")
    SpanTable.of(_spans(seconds, step_s, prefix)).save(folder / "spans.npz")
    with Store(home) as store:
        store.put(record)
    return record


def _spans(seconds: int, step_s: float, prefix: str) -> list[Span]:
    step = int(step_s * S)
    begin, end = 5 * S, (5 + seconds) * S
    timed = begin + (end - begin) // 10, end - (end - begin) // 10
    spans = [
        Span(begin, timed[0], "stage", "load"),
        Span(*timed, "stage", "timed"),
        Span(timed[1], end, "stage", "trace"),
    ]
    spans += [Span(at, at + step, "step", "timed", n) for n, at in enumerate(range(timed[0], timed[1] - step, step))]
    for number in range(3):
        at = timed[1] + number * step
        half = at + step // 2
        spans += [Span(at, at + step, "step", "traced", number), Span(at, half, "phase", "forward", number, "forward")]
        spans += [Span(half, at + step, "phase", "backward", number, "backward")]
        for layer, phase, start in (("conv1", "forward", at), ("fc1", "forward", at + step // 4)):
            spans.append(Span(start, start + step // 5, "op", "aten::mm", number, phase, prefix + layer))
        spans.append(Span(half, half + step // 3, "op", "aten::convolution_backward", number, "backward", "conv1"))
    return spans
