import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.analyze.statistics import drift, median_interval, settled, spread

positive = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=60)


@given(positive)
def test_the_interval_holds_the_median_and_lies_in_the_data(values: list[float]) -> None:
    median, low, high = median_interval(values)
    assert median == pytest.approx(float(np.median(values)))
    if len(values) < 6:
        assert low is None and high is None
    else:
        assert low is not None and high is not None
        assert min(values) <= low <= median <= high <= max(values)


@pytest.mark.parametrize("n", [6, 20, 101, 2000])
def test_the_interval_covers_the_true_median_95_times_of_100(n: int) -> None:
    random = np.random.default_rng(n)
    hits = 0
    for _ in range(600):
        _, low, high = median_interval(list(random.exponential(1.0, n)))
        assert low is not None and high is not None
        hits += low <= np.log(2) <= high
    assert hits / 600 > 0.93


def test_known_ranks() -> None:
    # The textbook's table for n = 20: the 6th and the 15th value.
    assert median_interval([float(n) for n in range(1, 21)]) == (10.5, 6.0, 15.0)


def test_spread_needs_six_values() -> None:
    assert spread([1.0] * 5) == float("inf")
    assert spread([1.0] * 6) == 0.0


def test_settled_when_times_stop_falling() -> None:
    falling = [2.0 - 0.1 * n for n in range(10)]
    assert not settled(falling)
    assert settled(falling + [1.0] * 10)
    assert not settled([1.0] * 9)


def test_drift_sees_a_slow_change_and_ignores_noise() -> None:
    random = np.random.default_rng(0)
    noise = list(1 + 0.02 * random.standard_normal(300))
    assert drift(noise) == 0.0
    assert drift([value * (1 + 0.2 * n / 300) for n, value in enumerate(noise)]) > 0.1
    assert drift([value * (1 - 0.2 * n / 300) for n, value in enumerate(noise)]) < -0.1
