"""A run as a Chrome trace: by the format, on one clock, and streamed."""

import json
import tracemalloc
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ergometer.core.record import Record
from ergometer.core.sensor import Channel
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.report.trace import trace_of
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

RECORD = Record(id="r", spec=Spec(model="<script>lenet"), status="ok", started_at="2026")
MS = 1_000_000


def events(spans: list[Span], samples: Samples | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads("".join(trace_of(RECORD, SpanTable.of(spans), samples)))["traceEvents"]
    return found


def sampled(channel: Channel, values: list[float], period_ns: int = 10 * MS) -> Samples:
    times = np.arange(len(values), dtype=np.int64) * period_ns
    return Samples((Timeline(times, (channel,), np.array(values)[:, None]),))


def test_a_known_burst_is_where_its_power_is() -> None:
    """An op from 100 to 200 ms, and power that is high from 100 to 200 ms."""
    spans = [Span(0, 300 * MS, "step", "traced", 0), Span(100 * MS, 200 * MS, "op", "conv2d", 0, "forward", "conv1")]
    power = sampled(Channel(name="power", unit="W"), [9.0 if 10 <= tick < 20 else 1.0 for tick in range(31)])
    found = events(spans, power)
    (op,) = (event for event in found if event.get("cat") == "op")
    changes = [(event["ts"], event["args"]["W"]) for event in found if event["ph"] == "C"]
    assert (op["ts"], op["ts"] + op["dur"]) == (100_000, 200_000)
    assert changes == [(0, 1.0), (100_000, 9.0), (200_000, 1.0), (300_000, 1.0)]
    assert op["args"] == {"phase": "forward", "layer": "conv1", "step": 0}


def test_a_counter_is_shown_as_what_it_grows_by() -> None:
    energy = Channel(name="energy", unit="J", kind="counter", wrap=10.0)
    found = events([], sampled(energy, [1.0, 1.05, 9.05, 0.05], period_ns=1000 * MS))
    assert [round(event["args"]["W"], 6) for event in found if event["ph"] == "C"] == [0.05, 8.0, 1.0]


def test_what_was_not_measured_is_left_out() -> None:
    found = events([], sampled(Channel(name="temperature", unit="C"), [40.0, float("nan"), 41.0]))
    assert [event["args"]["C"] for event in found if event["ph"] == "C"] == [40.0, 41.0]


def test_calls_of_a_layer_are_one_stay_in_it() -> None:
    spans = [
        Span(0, 10_000, "op", "conv2d", 0, "forward", "conv1"),
        Span(11_000, 20_000, "op", "add", 0, "forward", "conv1"),
        Span(20_500, 30_000, "op", "relu", 0, "forward", "relu1"),
        Span(40_000, 50_000, "op", "conv2d", 0, "backward", "conv1"),
    ]
    layers = [event for event in events(spans) if event.get("cat") == "layer"]
    assert [(event["name"], event["ts"], event["dur"]) for event in layers] == [
        ("conv1", 0, 20),
        ("relu1", 20.5, 9.5),
        ("conv1", 40, 10),
    ]


@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 300)), max_size=40))
def test_on_a_track_events_lie_side_by_side_or_inside_each_other(intervals: list[tuple[int, int]]) -> None:
    spans = [Span(start, start + length, "op", f"op{at}", 0) for at, (start, length) in enumerate(intervals)]
    ops = [event for event in events(spans) if event.get("cat") == "op"]
    assert sorted(event["name"] for event in ops) == sorted(span.name for span in spans)
    tracks: dict[int, list[tuple[float, float]]] = {}
    for event in ops:
        tracks.setdefault(event["tid"], []).append((event["ts"] * 1000, (event["ts"] + event["dur"]) * 1000))
    for track in tracks.values():
        for at, (start, end) in enumerate(track):
            for other_start, other_end in track[at + 1 :]:
                apart = other_start >= end - 1e-6 or other_end <= start + 1e-6
                inside = (other_start >= start - 1e-6 and other_end <= end + 1e-6) or (
                    start >= other_start - 1e-6 and end <= other_end + 1e-6
                )
                assert apart or inside


def test_every_event_has_what_the_format_asks_for() -> None:
    spans = [
        Span(0, MS, "stage", "load"),
        Span(MS, 2 * MS, "load", "timed", 0),
        Span(2 * MS, 3 * MS, "step", "timed", 0),
        Span(2 * MS, 3 * MS, "phase", "forward", 0, "forward"),
        Span(2 * MS, 3 * MS, "window", 'a "name" </script>'),
    ]
    found = events(spans, sampled(Channel(name="cpu.busy.0", unit="s", kind="counter"), [0.0, 0.01, 0.01]))
    for event in found:
        assert event["ph"] in "XMC" and isinstance(event["name"], str) and event["pid"] in (1, 2)
        if event["ph"] == "X":
            assert event["ts"] >= 0 and event["dur"] >= 0 and isinstance(event["tid"], int)
        if event["ph"] == "C":
            assert all(isinstance(value, float) for value in event["args"].values())
    tracks = {event["args"]["name"] for event in found if event["ph"] == "M"}
    assert {"stages", "batches", "steps", "phases", "windows", "sensors"} <= tracks


def test_a_trace_of_nothing_is_still_one() -> None:
    assert [event["ph"] for event in events([])] == ["M"]


def test_it_is_written_piece_by_piece() -> None:
    count = 40_000
    values = np.arange(count, dtype=np.float64)[:, None]
    timeline = Timeline(np.arange(count, dtype=np.int64) * 10 * MS, (Channel(name="power", unit="W"),), values)
    tracemalloc.start()
    total = sum(len(piece) for piece in trace_of(RECORD, SpanTable.of([]), Samples((timeline,))))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 2 * (1 << 20) and peak < 2.5 * (1 << 20)
