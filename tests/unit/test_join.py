import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ergometer.analyze.join import coverage, totals, windows
from ergometer.core.sensor import Channel
from ergometer.store.samples import Timeline

WATTS = Channel(name="power.x", unit="W")
JOULES = Channel(name="energy.x", unit="J", kind="counter")


def timeline(stamps: list[int], values: list[float], channel: Channel = WATTS) -> Timeline:
    return Timeline(np.array(stamps, dtype=np.int64), (channel,), np.array(values, dtype=float).reshape(-1, 1))


def one(line: Timeline, start: int, end: int) -> float:
    return float(windows(totals(line), np.array([start]), np.array([end]))[0, 0])


def test_constant_power_times_time() -> None:
    line = timeline([0, 10**9, 2 * 10**9], [5, 5, 5])
    assert one(line, 0, 2 * 10**9) == pytest.approx(10)
    assert one(line, 5 * 10**8, 6 * 10**8) == pytest.approx(0.5)


def test_a_ramp_is_a_triangle() -> None:
    line = timeline([0, 10**9], [0, 10])
    assert one(line, 0, 10**9) == pytest.approx(5)


def test_nothing_is_added_outside_of_the_samples() -> None:
    line = timeline([10**9, 2 * 10**9], [5, 5])
    assert one(line, 0, 3 * 10**9) == pytest.approx(5)
    assert one(line, 0, 10**9) == 0
    assert coverage(totals(line), np.array([0]), np.array([3 * 10**9]))[0] == pytest.approx(1 / 3)


def test_a_counter_wraps_around() -> None:
    wrapping = Channel(name="energy.x", unit="J", kind="counter", wrap=100.0)
    assert one(timeline([0, 10**9, 2 * 10**9], [95, 99, 3], wrapping), 0, 2 * 10**9) == pytest.approx(8)


def test_a_counter_that_goes_backwards_is_a_hole() -> None:
    line = timeline([0, 10**9, 2 * 10**9, 3 * 10**9], [10, 12, 5, 7], JOULES)
    assert one(line, 0, 3 * 10**9) == pytest.approx(4)
    assert coverage(totals(line), np.array([0]), np.array([3 * 10**9]))[0] == pytest.approx(2 / 3)


def test_a_counter_knows_what_happened_in_a_hole() -> None:
    stamps = [0, 10**7, 2 * 10**7, 10**9, 10**9 + 10**7]
    line = timeline(stamps, [0, 1, float("nan"), 100, 101], JOULES)
    assert one(line, 0, stamps[-1]) == pytest.approx(101)
    assert coverage(totals(line), np.array([0]), np.array([stamps[-1]]))[0] == pytest.approx(1)


def test_a_gap_and_a_missing_value_are_holes() -> None:
    stamps = [n * 10**7 for n in range(100)] + [10**9 + 2 * 10**9 + n * 10**7 for n in range(100)]
    values = [1.0] * 200
    values[50] = float("nan")
    line = timeline(stamps, values)
    table = totals(line)
    whole = one(line, 0, stamps[-1])
    # 2 s without samples and the two intervals next to the missing value are not invented.
    assert whole == pytest.approx((stamps[-1] * 1e-9) - 2.01 - 0.02, abs=1e-6)
    assert coverage(table, np.array([0]), np.array([stamps[-1]]))[0] < 0.5


def test_resolution_is_that_of_the_sensor_not_of_the_sampler() -> None:
    values = [float(n // 10) for n in range(200)]
    stamps = [n * 10**7 for n in range(200)]
    assert totals(timeline(stamps, values)).resolution_s[0] == pytest.approx(0.1)
    rare = [float(n // 60) for n in range(200)]
    assert totals(timeline(stamps, rare)).resolution_s[0] > 0.4
    warm = Channel(name="temperature.x", unit="°C")
    assert totals(timeline(stamps, rare, warm)).resolution_s[0] == pytest.approx(0.01)


@st.composite
def lines(draw: st.DrawFn) -> Timeline:
    steps = draw(st.lists(st.integers(10**6, 10**8), min_size=2, max_size=40))
    values = draw(st.lists(st.floats(0, 1e3), min_size=len(steps), max_size=len(steps)))
    return timeline(list(np.cumsum(steps)), values)


@given(lines(), st.lists(st.floats(0, 1), min_size=1, max_size=30))
@settings(max_examples=200)
def test_windows_that_partition_an_interval_add_up_to_it(line: Timeline, cuts: list[float]) -> None:
    first, last = int(line.t_ns[0]), int(line.t_ns[-1])
    edges = np.array(sorted({first, last, *(first + int(cut * (last - first)) for cut in cuts)}))
    table = totals(line)
    parts = windows(table, edges[:-1], edges[1:])[:, 0]
    whole = windows(table, edges[:1], edges[-1:])[0, 0]
    assert parts.sum() == pytest.approx(whole, rel=1e-9, abs=1e-9)
    assert (parts >= -1e-9).all()


def test_a_small_step_back_is_not_a_wrap() -> None:
    wrapping = Channel(name="energy.x", unit="J", kind="counter", wrap=1000.0)
    assert one(timeline([0, 10**9, 2 * 10**9], [500, 499, 502], wrapping), 0, 2 * 10**9) == pytest.approx(3)


@given(st.lists(st.integers(0, 1000), min_size=3, max_size=50), st.integers(2001, 9000))
def test_growth_of_a_wrapping_counter_is_never_negative_and_complete(growths: list[int], wrap: int) -> None:
    values = np.cumsum(growths) % wrap
    wrapping = Channel(name="energy.x", unit="J", kind="counter", wrap=float(wrap))
    line = timeline([n * 10**7 for n in range(len(values))], [float(value) for value in values], wrapping)
    assert one(line, 0, int(line.t_ns[-1])) == pytest.approx(sum(growths[1:]))


def test_many_windows_equal_single_ones() -> None:
    random = np.random.default_rng(1)
    line = timeline(list(np.cumsum(random.integers(10**6, 10**7, 5000))), list(random.uniform(0, 9, 5000)))
    starts = np.sort(random.integers(line.t_ns[0], line.t_ns[-1], 40_000))
    ends = starts + 10**6
    table = totals(line)
    together = windows(table, starts, ends)[:, 0]
    for at in (0, 16_383, 16_384, 39_999):
        assert together[at] == pytest.approx(one(line, int(starts[at]), int(ends[at])))
