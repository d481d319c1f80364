"""What a page draws is what was sampled: packed small, and unpacked again."""

import base64
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.core.sensor import Channel
from ergometer.core.span import Span
from ergometer.report.timeline import TICK_NS, packed
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

S = 1_000_000_000
POWER, BUSY = Channel(name="power", unit="W"), Channel(name="cpu.busy.0", unit="s", kind="counter")


def samples(channel: Channel, values: Any, period_ns: int = S // 100) -> Samples:
    times = np.arange(len(values), dtype=np.int64) * period_ns + 7 * S
    return Samples((Timeline(times, (channel,), np.array(values, dtype=np.float64)[:, None]),))


def unpacked(found: dict[str, Any], place: Any, kind: str) -> Any:
    data = zlib.decompress(base64.b64decode(found["blob"]))
    return np.frombuffer(data, dtype=kind, count=place[1], offset=place[0])


def values_of(found: dict[str, Any], which: str = "mean") -> Any:
    channel = found["groups"][0]["channels"][0]
    codes = unpacked(found, channel[which], "<u2")
    scale = (channel["high"] - channel["low"]) / 65534
    return np.where(codes == 65535, np.nan, channel["low"] + codes * scale)


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=2, max_size=50))
def test_values_come_back_within_a_hair_of_their_range(values: list[float]) -> None:
    found = packed(None, samples(POWER, values))
    assert found is not None
    json.dumps(found, allow_nan=False)
    back, true = values_of(found), np.array(values)
    assert (np.isnan(back) == np.isnan(true)).all()
    finite = np.isfinite(true)
    if finite.any():
        span = true[finite].max() - true[finite].min()
        assert np.abs(back - true)[finite].max() <= span / 131068 * 1.001 + 1e-9


def test_times_are_whole_ticks_since_the_first_stamp() -> None:
    spans = SpanTable.of([Span(6 * S, 8 * S, "stage", "load"), Span(8 * S, 9 * S, "step", "timed", 0)])
    found = packed(spans, samples(POWER, [1, 2, 3]))
    assert found is not None
    ticks = np.cumsum(unpacked(found, found["groups"][0]["times"], "<i4"))
    assert (ticks * TICK_NS).tolist() == [S, S + S // 100, S + S // 50]
    assert found["stages"] == [{"name": "load", "start": 0.0, "end": 2.0}]
    assert np.cumsum(unpacked(found, found["steps"]["starts"], "<i4")).tolist() == [2 * S // TICK_NS]


def test_what_is_too_much_is_averaged_and_keeps_its_extremes() -> None:
    values = np.random.default_rng(0).normal(5, 1, 50_001)
    values[12_345] = 99
    found = packed(None, samples(POWER, values), most_values=30_000)
    assert found is not None
    mean, highest = values_of(found), values_of(found, "highest")
    assert len(mean) * 3 <= 30_000 and found["groups"][0]["period"] == pytest.approx(0.01 * 8)
    assert highest.max() == pytest.approx(99, abs=0.01) and values_of(found, "lowest").min() < 2
    assert np.nanmean(mean) == pytest.approx(values.mean(), rel=1e-3)


def test_a_core_that_is_always_busy_is_at_100_percent() -> None:
    """The kernel counts in ticks of 10 ms: read every 12.5 ms, one reading has one tick and the next has two."""
    busy = np.floor(np.arange(400) * 1.25) * 0.01
    found = packed(None, samples(BUSY, busy, period_ns=12_500_000))
    assert found is not None
    channel = found["groups"][0]["channels"][0]
    assert channel["unit"] == "%" and channel["how"].startswith("rate of a counter over 0.2")
    rates = values_of(found)
    known = rates[np.isfinite(rates)]
    assert len(known) == 399 and np.abs(known - 100).max() <= 7


def test_a_core_that_begins_to_work_does_so_when_it_does() -> None:
    """Ticks of 10 ms, read every 50 ms; idle for 2 s, then busy."""
    ticks = np.concatenate([np.zeros(40), np.cumsum(np.tile([4, 5, 6], 20))])
    found = packed(None, samples(BUSY, ticks * 0.01, period_ns=50_000_000))
    assert found is not None and found["groups"][0]["channels"][0]["how"] == "rate of a counter over 0.2 s"
    rates = values_of(found)
    assert np.nanmax(rates[:37]) == 0 and np.nanmin(rates[43:]) > 85


def test_nothing_to_draw_is_nothing() -> None:
    assert packed(None, None) is None
    assert packed(SpanTable.of([]), Samples(())) is None
