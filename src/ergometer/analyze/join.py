"""How much of each channel falls into each window: the join of samples and spans on one clock.

A gauge (watts) is integrated by the trapezoid rule between neighbouring samples; a counter (joules) gives
its difference. Both become one running total per channel, and a window's share is the total at its end
minus the total at its start, so that windows which partition an interval add up to it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ergometer.core.sensor import Channel
from ergometer.store.samples import Timeline

Floats = NDArray[np.float64]
Stamps = NDArray[np.int64]

_GAP = 8.0  # an interval this many times longer than usual is a hole, not a sample
_ENOUGH = 20_000  # samples that tell how often a sensor refreshes
_CHUNK = 16384  # windows joined at a time: temporaries stay in the cache


@dataclass(frozen=True, slots=True)
class Totals:
    """Running totals of a timeline: total[i, j] is channel j's integral (unit x s) or growth up to t_ns[i].

    known[i, j] is the time in s that is really covered by samples up to there. resolution_s is how often
    each channel's value changes.
    """

    t_ns: Stamps
    channels: tuple[Channel, ...]
    total: Floats
    known: Floats | None
    resolution_s: Floats


def totals(timeline: Timeline) -> Totals:
    """Running totals of every channel of a timeline."""
    t_ns = timeline.t_ns
    steps_s = np.diff(t_ns) * 1e-9
    usual_s = float(np.median(steps_s)) if len(steps_s) else 0.0
    whole = steps_s <= _GAP * usual_s
    no_hole = bool(whole.all())
    total = np.zeros((len(timeline.channels), len(t_ns)))
    known: Floats | None = None
    resolution = np.empty(len(timeline.channels))
    for row, (channel, series) in enumerate(zip(timeline.channels, timeline.values.T, strict=True)):
        series = np.ascontiguousarray(series)
        resolution[row] = _resolution(channel, t_ns, series, usual_s)
        growth = _growth(channel, series, steps_s)
        if not (no_hole or channel.kind == "counter") or not np.isfinite(growth.sum()):
            # What a counter did across a hole is known: its difference. A gauge may have been anything.
            usable = np.isfinite(growth) if channel.kind == "counter" else np.isfinite(growth) & whole
            if known is None:
                known = np.zeros_like(total)
                known[:, 1:] = np.cumsum(steps_s)
            np.cumsum(np.where(usable, steps_s, 0.0), out=known[row, 1:])
            growth = np.where(usable, growth, 0.0)
        np.cumsum(growth, out=total[row, 1:])
    by_time = None if known is None else np.ascontiguousarray(known.T)
    return Totals(t_ns, timeline.channels, np.ascontiguousarray(total.T), by_time, resolution)


def growth_rate(channel: Channel, t_ns: Stamps, series: Floats) -> Floats:
    """Of a counter, what it grows by per second from each sample to the next; NaN where it cannot be told."""
    steps_s = np.diff(t_ns) * 1e-9
    return np.append(_growth(channel, series, steps_s) / np.maximum(steps_s, 1e-9), np.nan)


def _growth(channel: Channel, series: Floats, steps_s: Floats) -> Floats:
    """What the channel adds between neighbouring samples; NaN where it cannot be told."""
    if channel.kind == "gauge":
        growth = series[1:] + series[:-1]
        growth *= steps_s
        growth *= 0.5
        return growth
    finite = np.isfinite(series)
    if not finite.all() and finite.any():
        return _growth_across(channel, series, steps_s, finite)
    growth = np.diff(series)
    if channel.wrap:
        # A wrap drops by nearly the whole range; a smaller drop is a fault and must not become a huge growth.
        growth[growth < -channel.wrap / 2] += channel.wrap
    growth[growth < 0] = np.nan  # a counter that goes backwards said something wrong
    return growth


def _growth_across(channel: Channel, series: Floats, steps_s: Floats, finite: NDArray[np.bool_]) -> Floats:
    """Growth of a counter with readings missing: the difference of their neighbours, spread evenly between them."""
    at = np.flatnonzero(finite)
    growth = np.full(len(steps_s), np.nan)
    between = _growth(channel, series[at], np.empty(len(at) - 1))
    elapsed_s = np.concatenate([[0.0], np.cumsum(steps_s)])
    for first, last, amount in zip(at[:-1], at[1:], between, strict=True):
        growth[first:last] = amount * steps_s[first:last] / (elapsed_s[last] - elapsed_s[first])
    return growth


def _resolution(channel: Channel, t_ns: Stamps, series: Floats, usual_s: float) -> float:
    """Seconds between refreshes of a power sensor, seen in its changes: one read at 100 Hz may refresh at 10 Hz.

    Other channels may rightly stay the same (an idle core, a temperature): theirs is the time between reads.
    """
    if channel.unit not in ("W", "J"):
        return usual_s
    series, t_ns = series[:_ENOUGH], t_ns[:_ENOUGH]
    changes = t_ns[1:][np.diff(series) != 0]
    if len(changes) == 0:
        return usual_s
    if len(changes) < 4:
        return max(usual_s, float(t_ns[-1] - t_ns[0]) * 1e-9 / (len(changes) + 1))
    return max(usual_s, float(np.median(np.diff(changes))) * 1e-9)


def windows(totals: Totals, start_ns: Stamps, end_ns: Stamps, table: Floats | None = None) -> Floats:
    """One row per window: what of each channel falls into it. Outside of the samples nothing is added.

    table: another running total on the same time axis (`totals.known`), instead of the channels' own.
    """
    table = totals.total if table is None else table
    out = np.zeros((len(start_ns), table.shape[1]))
    if len(totals.t_ns) < 2:
        return out
    width = max(1, min(_CHUNK, len(start_ns)))
    below, above = np.empty((2, width, table.shape[1]))
    for begin in range(0, len(start_ns), width):
        piece = slice(begin, begin + width)
        start = np.empty_like(out[piece])
        _interpolate(totals.t_ns, table, start_ns[piece], below, above, start)
        _interpolate(totals.t_ns, table, end_ns[piece], below, above, out[piece])
        out[piece] -= start
    return out


def _interpolate(t_ns: Stamps, table: Floats, stamps: Stamps, below: Floats, above: Floats, out: Floats) -> None:
    """The running totals at each stamp, into out; below and above are scratch space."""
    size = len(stamps)
    below, above = below[:size], above[:size]
    clipped = np.clip(stamps, t_ns[0], t_ns[-1])
    index = np.searchsorted(t_ns, clipped, side="right") - 1
    np.minimum(index, len(t_ns) - 2, out=index)
    left = t_ns.take(index)
    index_above = index + 1
    fraction = (clipped - left) / (t_ns.take(index_above) - left)
    table.take(index, axis=0, out=below, mode="clip")
    table.take(index_above, axis=0, out=above, mode="clip")
    above -= below
    above *= fraction[:, None]
    np.add(below, above, out=out)


def coverage(totals: Totals, start_ns: Stamps, end_ns: Stamps) -> Floats:
    """Per channel, the share of the windows' whole time that samples cover, 0 to 1."""
    wanted = float((end_ns - start_ns).sum()) * 1e-9
    if wanted <= 0:
        return np.zeros(len(totals.channels))
    if totals.known is not None:
        covered: Floats = windows(totals, start_ns, end_ns, totals.known).sum(axis=0) / wanted
        return covered
    inside = np.clip(end_ns, totals.t_ns[0], totals.t_ns[-1]) - np.clip(start_ns, totals.t_ns[0], totals.t_ns[-1])
    return np.full(len(totals.channels), float(inside.sum()) * 1e-9 / wanted)
