"""Samples and spans as a page draws them: every channel over time, packed small.

Times are whole tenths of a millisecond since the run's first stamp, values 16 bits between the channel's lowest and
highest, so a value is off by at most 1/131068 of that range. What is too much for a page is averaged: then each
point has the mean, the lowest and the highest of its samples, and the page says over how long.
"""

import base64
import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ergometer.analyze.join import Floats, growth_rate
from ergometer.core.sensor import Channel
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

TICK_NS = 100_000
MOST_VALUES = 1_500_000  # of all channels, on one page
_SHORT = 4000  # samples that are never averaged
_ABSENT = 65535
_RATES = {"J": ("W", 1.0), "s": ("%", 100.0)}  # what a counter of these is per second: power, and share of a core
_MOST_STEPS = 100_000
_TICKS = 20  # of a counter, so that its rate is right to 5 %
_WIDEST_S = 1.0


def origin_ns(spans: SpanTable | None, samples: Samples | None) -> int:
    """The first stamp of a run."""
    starts = [int(spans.start_ns.min())] if spans is not None and len(spans) else []
    for timeline in samples.timelines if samples else ():
        starts += [int(timeline.t_ns[0])] if len(timeline.t_ns) else []
    return min(starts, default=0)


def packed(spans: SpanTable | None, samples: Samples | None, most_values: int = MOST_VALUES) -> dict[str, Any] | None:
    """{groups, stages, steps, blob}; None where there is nothing to draw.

    blob: base64 of deflated arrays; every other item names its arrays by (offset, length) in it.
    """
    start = origin_ns(spans, samples)
    blob = _Blob()
    lines = [timeline for timeline in (samples.timelines if samples else ()) if len(timeline.t_ns) > 1]
    width = _width(lines, most_values)
    groups = [_group(timeline, start, width, blob) for timeline in lines]
    stages, steps = ([], None) if spans is None else (_stages(spans, start), _steps(spans, start, blob))
    if not groups and not steps:
        return None
    return {"groups": groups, "stages": stages, "steps": steps, "blob": blob.text()}


class _Blob:
    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, array: NDArray[Any]) -> tuple[int, int]:
        """Where it lies: offset in bytes, which is a multiple of 4, and length in items."""
        data = array.tobytes()
        place = (self._size, len(array))
        data += b"\0" * (-len(data) % 4)
        self._pieces.append(data)
        self._size += len(data)
        return place

    def text(self) -> str:
        return base64.b64encode(zlib.compress(b"".join(self._pieces), 6)).decode()


def _width(lines: list[Timeline], most_values: int) -> int:
    """How many samples become one point, so that all fit."""
    width = 1
    while sum(_points(len(line.t_ns), width) * len(line.channels) * (3 if width > 1 else 1) for line in lines) > (
        most_values
    ):
        if all(_points(len(line.t_ns), width) <= _SHORT for line in lines):
            break
        width *= 2
    return width


def _points(samples: int, width: int) -> int:
    return samples if samples <= _SHORT else -(-samples // width)


def _group(line: Timeline, start: int, width: int, blob: _Blob) -> dict[str, Any]:
    """The channels that were read together, with their common times."""
    width = width if len(line.t_ns) > _SHORT else 1
    ticks = (line.t_ns[::width] - start) // TICK_NS
    channels = [_channel(channel, line, at, width, blob) for at, channel in enumerate(line.channels)]
    period_s = float(np.median(np.diff(line.t_ns))) * 1e-9 * width
    return {"times": blob.add(np.diff(ticks, prepend=0).astype("<i4")), "period": period_s, "channels": channels}


def _channel(channel: Channel, line: Timeline, at: int, width: int, blob: _Blob) -> dict[str, Any]:
    values, unit = line.values[:, at], channel.unit
    if channel.kind == "counter":
        unit, factor = _RATES.get(unit, (f"{unit}/s", 1.0))
        values, over_s = _rate(channel, line, values)
        values = values * factor
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    item: dict[str, Any] = {"name": channel.name, "unit": unit, "low": low, "high": high}
    item["how"] = f"rate of a counter over {over_s:.2g} s" if channel.kind == "counter" else "level as read"
    if channel.modelled:
        item["how"] += ", estimated: corrected by a model"
    mean, lowest, highest = _averaged(values, width)
    item["mean"] = blob.add(_coded(mean, low, high))
    if width > 1 and channel.kind == "gauge":
        item |= {"lowest": blob.add(_coded(lowest, low, high)), "highest": blob.add(_coded(highest, low, high))}
    return item


def _rate(channel: Channel, line: Timeline, values: Floats) -> tuple[Floats, float]:
    """What a counter grows by per second, and over how long that is taken: long enough for _TICKS of its ticks.

    The kernel counts a core's time in ticks of 10 ms: over 50 ms a core would be 80 or 120 % busy.
    """
    rate = growth_rate(channel, line.t_ns, values)
    steps_s = np.diff(line.t_ns) * 1e-9
    growth = rate[:-1] * steps_s
    usual_s = float(np.median(steps_s))
    sizes = np.unique(np.round(growth[growth > 0], 9))
    busy = float(np.median(rate[rate > 0])) if len(sizes) else 0.0
    tick = float(np.diff(sizes).min()) if len(sizes) > 1 else 0.0
    width = min(math.ceil(min(_TICKS * tick / busy, _WIDEST_S) / usual_s), len(growth)) if busy else 1
    if width > 1:
        known = np.isfinite(growth)
        sums = [np.append(0.0, np.cumsum(np.where(known, part, 0.0))) for part in (growth, steps_s)]
        first = np.clip(np.arange(len(growth)) - width // 2, 0, len(growth) - width)
        grown, took_s = (part[first + width] - part[first] for part in sums)
        rate = np.append(np.where(took_s > 0, grown / np.maximum(took_s, 1e-9), np.nan), np.nan)
    return rate, max(width, 1) * usual_s


def _averaged(values: Floats, width: int) -> tuple[Floats, Floats, Floats]:
    """Mean, lowest and highest of every so many samples; NaN where none of them is known."""
    if width == 1:
        return values, values, values
    full = np.append(values, np.full(-len(values) % width, np.nan)).reshape(-1, width)
    count = np.isfinite(full).sum(axis=1)
    mean = np.where(count, np.nansum(full, axis=1) / np.maximum(count, 1), np.nan)
    return mean, np.fmin.reduce(full, axis=1), np.fmax.reduce(full, axis=1)


def _coded(values: Floats, low: float, high: float) -> NDArray[np.uint16]:
    span = high - low
    scaled = np.round((values - low) / span * (_ABSENT - 1)) if span > 0 else np.zeros(len(values))
    return np.where(np.isfinite(values), scaled, _ABSENT).astype("<u2")


def _stages(spans: SpanTable, start: int) -> list[dict[str, Any]]:
    found = spans.select(kind="stage")
    return [
        {"name": found.words[name], "start": (int(begin) - start) * 1e-9, "end": (int(end) - start) * 1e-9}
        for name, begin, end in zip(found.name, found.start_ns, found.end_ns, strict=True)
    ]


def _steps(spans: SpanTable, start: int, blob: _Blob) -> dict[str, Any] | None:
    found = spans.select(kind="step")
    if not len(found):
        return None
    every = -(-len(found) // _MOST_STEPS)
    ticks = [((column[::every] - start) // TICK_NS) for column in (found.start_ns, found.end_ns)]
    starts, lengths = np.diff(ticks[0], prepend=0), ticks[1] - ticks[0]
    traced = found.name[::every] == (found.words.index("traced") if "traced" in found.words else -1)
    return {
        "starts": blob.add(starts.astype("<i4")),
        "lengths": blob.add(lengths.astype("<i4")),
        "traced": int(np.argmax(traced)) if traced.any() else len(traced),
        "every": every,
    }
