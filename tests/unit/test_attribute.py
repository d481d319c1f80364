import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergometer.analyze.attribute import BETWEEN, LEVELS, attribute
from ergometer.core.sensor import Channel
from ergometer.core.span import Span
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

MS = 1_000_000
PHASES = ("forward", "backward", "optimizer")


def samples(seconds: float, watts: float = 4.0, cores: float = 2.0, period_ms: int = 10) -> Samples:
    t_ns = np.arange(0, int(seconds * 1e9), period_ms * MS, dtype=np.int64)
    channels = (
        Channel(name="power.board", unit="W", scope="system"),
        Channel(name="process.cpu", unit="s", kind="counter"),
    )
    # Power that changes with every sample, so that its resolution is the sampler's.
    power = watts + 0.001 * (np.arange(len(t_ns)) % 2)
    return Samples((Timeline(t_ns, channels, np.column_stack([power, t_ns * 1e-9 * cores])),))


@st.composite
def traced_steps(draw: st.DrawFn) -> list[Span]:
    """Steps whose phases hold ops with gaps between them, as a tracer reports them."""
    spans, now = [], 50 * MS
    for step in range(draw(st.integers(1, 4))):
        start = now
        for phase in PHASES:
            phase_start = now
            for _ in range(draw(st.integers(0, 5))):
                now += draw(st.integers(0, 2 * MS))
                length = draw(st.integers(1, 20 * MS))
                name, layer = draw(st.sampled_from(["conv", "relu"])), draw(st.sampled_from(["a", "b.c", ""]))
                spans.append(Span(now, now + length, "op", name, step, phase, layer))
                now += length
            now += draw(st.integers(1, MS))
            spans.append(Span(phase_start, now, "phase", phase, step, phase))
        spans.append(Span(start, now, "step", "traced", step))
        now += draw(st.integers(0, 5 * MS))
    return spans


@given(traced_steps(), st.sampled_from(LEVELS))
@settings(max_examples=100, deadline=None)
def test_shares_add_up_to_the_whole(spans: list[Span], level: str) -> None:
    table = SpanTable.of(spans)
    steps = table.select(kind="step", name="traced")
    whole_s = float(steps.duration_s.sum()) / len(steps)
    found = attribute(table, samples(5.0), level)
    assert sum(share.share for share in found) == pytest.approx(1, abs=0.01)
    assert sum(share.time_s for share in found) == pytest.approx(whole_s, rel=0.01)
    assert sum(share.energy_j or 0 for share in found) == pytest.approx(4.0005 * whole_s, rel=0.01)
    assert sum(share.cpu_s or 0 for share in found) == pytest.approx(2 * whole_s, rel=0.01)
    assert all(share.time_s >= 0 for share in found)


def test_what_lies_between_ops_is_a_share_of_its_own() -> None:
    spans = [
        Span(0, 10 * MS, "step", "traced", 0),
        Span(0, 10 * MS, "phase", "forward", 0, "forward"),
        Span(2 * MS, 8 * MS, "op", "conv", 0, "forward", "layer1"),
    ]
    found = {share.layer: share for share in attribute(SpanTable.of(spans), samples(1.0), "ops")}
    assert found["layer1"].share == pytest.approx(0.6)
    assert found[BETWEEN].share == pytest.approx(0.4)


def test_what_a_gpu_tells_is_joined_to_ops() -> None:
    """Busy for the first half of a step alone, in which more of its memory was taken."""
    t_ns = np.arange(0, 2000 * MS, 10 * MS, dtype=np.int64)
    channels = (Channel(name="gpu_utilisation.0", unit="%"), Channel(name="gpu_memory.0", unit="B"))
    early = t_ns < 1000 * MS
    values = np.column_stack([np.where(early, 80.0, 0.0), np.where(early, 6e9, 2e9)])
    spans = [
        Span(0, 1900 * MS, "step", "traced", 0),
        Span(0, 1900 * MS, "phase", "forward", 0, "forward"),
        Span(0, 1000 * MS, "op", "conv", 0, "forward", "a"),
        Span(1000 * MS, 1900 * MS, "op", "relu", 0, "forward", "b"),
    ]
    found = attribute(SpanTable.of(spans), Samples((Timeline(t_ns, channels, values),)), "layers")
    busy = {share.layer: share for share in found}
    assert busy["a"].gpu_s == pytest.approx(0.8, rel=0.01) and busy["b"].gpu_s == pytest.approx(0.0, abs=0.01)
    assert busy["a"].gpu_memory_bytes == pytest.approx(6e9, rel=0.01)
    assert busy["b"].gpu_memory_bytes == pytest.approx(2e9, rel=0.01)
    assert busy["a"].cpu_s is None and busy["a"].energy_j is None and busy["a"].source == "integrated"
    without = attribute(SpanTable.of(spans), samples(5.0), "layers")
    assert all(share.gpu_s is None and share.gpu_memory_bytes is None for share in without)


def test_a_call_shorter_than_the_sensor_resolves_is_estimated() -> None:
    def source(length_ns: int) -> str:
        spans = [
            Span(0, length_ns, "step", "traced", 0),
            Span(0, length_ns, "phase", "forward", 0, "forward"),
            Span(0, length_ns, "op", "conv", 0, "forward", "a"),
        ]
        return attribute(SpanTable.of(spans), samples(5.0), "ops")[0].source

    assert source(5 * MS) == "estimated"
    assert source(500 * MS) == "integrated"


def test_without_sensors_there_is_time_but_no_energy() -> None:
    spans = [Span(0, MS, "step", "traced", 0), Span(0, MS, "phase", "forward", 0, "forward")]
    (share,) = attribute(SpanTable.of(spans), Samples(()), "phases")
    assert share.time_s == pytest.approx(1e-3)
    assert share.energy_j is None and share.cpu_s is None


def test_a_sensor_lost_before_the_traced_steps_gives_no_energy() -> None:
    spans = [
        Span(10**9, 10**9 + 50 * MS, "step", "traced", 0),
        Span(10**9, 10**9 + 50 * MS, "phase", "forward", 0, "forward"),
    ]
    found = samples(2.0)
    values = found.timelines[0].values.copy()
    values[90:, 0] = np.nan
    lost = Samples((Timeline(found.timelines[0].t_ns, found.timelines[0].channels, values),))
    (share,) = attribute(SpanTable.of(spans), lost, "phases")
    assert share.energy_j is None
    assert share.cpu_s == pytest.approx(0.1, rel=0.01)


def test_nothing_traced_gives_nothing() -> None:
    assert attribute(SpanTable.of([]), Samples(()), "ops") == []
