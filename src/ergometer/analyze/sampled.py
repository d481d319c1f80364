"""Metrics from samples: what each channel did during a set of windows."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ergometer.analyze.join import Floats, Stamps, Totals, coverage, totals, windows
from ergometer.core.record import Metric
from ergometer.core.sensor import Channel
from ergometer.store.samples import Samples

TRUSTED = 10  # a window this many times the sensor's resolution is measured; a shorter one estimated
_REFUSED = 2  # shorter than this many times the resolution says nothing
COVERED = 0.95  # of the time, or the reading is refused
_COMPLETE = 0.99  # of the time, or it is an estimate

_AVERAGED = ("power.", "temperature.", "frequency.", "gpu_utilisation.", "gpu_frequency.", "gpu_memory.", "throttle.")


@dataclass(frozen=True, slots=True)
class Reading:
    """One channel over the windows: its integral or growth, how it may be used, or why not."""

    channel: Channel
    amount: float
    seconds: float
    n: int
    low: float
    high: float
    source: str
    refused: str = ""


def read_windows(
    samples: Samples, start_ns: Stamps, end_ns: Stamps, *, interrupted: bool = False
) -> dict[str, Reading]:
    """Every sampled channel over the windows together. Channels read only at the ends are left out.

    interrupted: something else is done between the windows, so that a sensor must resolve each by itself.
    """
    apart = len(start_ns) if interrupted else 1
    readings: dict[str, Reading] = {}
    for timeline in samples.timelines:
        if len(timeline.t_ns) < 3:
            continue
        table = totals(timeline)
        amounts = windows(table, start_ns, end_ns).sum(axis=0)
        covered = coverage(table, start_ns, end_ns)
        inside = (timeline.t_ns >= start_ns[0]) & (timeline.t_ns <= end_ns[-1]) if len(start_ns) else None
        for column, channel in enumerate(timeline.channels):
            values = timeline.values[inside, column] if inside is not None else timeline.values[:0, column]
            readings[channel.name] = _reading(
                table, column, float(amounts[column]), covered, values, float((end_ns - start_ns).sum()) * 1e-9, apart
            )
    return readings


def _reading(
    table: Totals, column: int, amount: float, covered: Floats, values: Floats, seconds: float, apart: int
) -> Reading:
    channel, resolution_s = table.channels[column], float(table.resolution_s[column])
    values = values[np.isfinite(values)]
    refused = ""
    alone_s = seconds / apart
    if alone_s < _REFUSED * resolution_s:
        remedy = "measure more steps" if apart == 1 else "use a larger batch, or synthetic data"
        refused = (
            f"the measured {alone_s * 1e3:.3g} ms are too short for a sensor that changes every "
            f"{resolution_s * 1e3:.3g} ms: {remedy}"
        )
    elif covered[column] < COVERED:
        refused = f"samples cover only {100 * covered[column]:.0f} % of the time"
    estimated = channel.modelled or alone_s < TRUSTED * resolution_s or covered[column] < _COMPLETE
    source = "estimated" if estimated else "counter" if channel.kind == "counter" else "integrated"
    if covered[column] > 0:
        amount /= float(covered[column])  # the time without samples is taken to be like the rest
    low, high = (float(values.min()), float(values.max())) if len(values) else (np.nan, np.nan)
    return Reading(channel, amount, seconds, len(values), low, high, source, refused)


def cpu_metrics(readings: dict[str, Reading]) -> tuple[dict[str, Metric], dict[str, str]]:
    """Utilisation and idle share of each core, and their mean, in %; and why they are absent."""
    found: dict[str, Metric] = {}
    absent: dict[str, str] = {}
    cores = sorted(int(name.rsplit(".", 1)[1]) for name in readings if name.startswith("cpu.busy."))
    shares = []
    for core in cores:
        busy, idle = readings[f"cpu.busy.{core}"], readings[f"cpu.idle.{core}"]
        whole = busy.amount + idle.amount
        if busy.refused or whole <= 0:
            absent["cpu_utilisation"] = busy.refused or "shorter than a tick of the kernel's clock"
            continue
        share = 100 * busy.amount / whole
        shares.append(share)
        found[f"cpu_utilisation.{core}"] = Metric(value=share, unit="%", n=busy.n, source=busy.source)
        found[f"idle_ratio.{core}"] = Metric(value=100 - share, unit="%", n=idle.n, source=idle.source)
    if shares:
        first = readings[f"cpu.busy.{cores[0]}"]
        note = f"mean over {len(shares)} cores, whatever ran on them"
        found["cpu_utilisation"] = Metric(
            value=float(np.mean(shares)),
            unit="%",
            n=first.n,
            low=min(shares),
            high=max(shares),
            source=first.source,
            note=note,
        )
    return found, absent


def level_metrics(readings: dict[str, Reading]) -> tuple[dict[str, Metric], dict[str, str]]:
    """Mean level of each power, temperature, frequency and load channel; and why some are absent."""
    found, absent = {}, {}
    for name, reading in readings.items():
        metric_name = f"power.{name.removeprefix('energy.')}" if name.startswith("energy.") else name
        if not metric_name.startswith(_AVERAGED):
            continue
        if reading.refused or not reading.n:
            absent[metric_name] = reading.refused or "no usable reading"
            continue
        counts = reading.channel.kind == "counter"
        if counts and not name.startswith("energy."):
            found[name] = Metric(value=reading.amount, unit=reading.channel.unit, n=reading.n, source="counter")
            continue
        found[metric_name] = Metric(
            value=reading.amount / reading.seconds,
            unit="W" if counts else reading.channel.unit,
            n=reading.n,
            low=None if counts else reading.low,
            high=None if counts else reading.high,
            source=reading.source,
        )
    return found, absent


def energy_channels(channels: Iterable[Channel]) -> list[Channel]:
    """The channels whose sum is the device's energy, nothing counted twice.

    A sensor of the whole device is taken where there is one; otherwise the disjoint components.
    """
    power = [channel for channel in channels if channel.name.startswith(("power.", "energy."))]
    system = [channel for channel in power if channel.scope == "system"]
    return system[:1] or [channel for channel in power if channel.scope == "component"]


def whole_energy(readings: dict[str, Reading]) -> tuple[Metric | None, str]:
    """Joules of the device over the windows, or (None, why not); the note says what was added."""
    chosen = [readings[channel.name] for channel in energy_channels(r.channel for r in readings.values())]
    if not chosen:
        parts = [name for name in readings if name.startswith(("power.", "energy."))]
        if parts:
            return None, f"{', '.join(parts)} do not cover the whole device (plugged in, or only some of its rails)"
        return None, "no power sensor works here: `ergo doctor` shows which were tried and why"
    refused = next((reading.refused for reading in chosen if reading.refused), "")
    if refused:
        return None, refused
    sources = {reading.source for reading in chosen}
    source = "estimated" if "estimated" in sources else "integrated" if "integrated" in sources else "counter"
    note = " + ".join(reading.channel.name for reading in chosen)
    if chosen[0].channel.scope != "system":
        note += "; the rest of the device is not measured"
    amount = sum(reading.amount for reading in chosen)
    return Metric(value=amount, unit="J", n=min(r.n for r in chosen), source=source, note=note), ""
