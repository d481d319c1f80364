"""Two sets of runs: what is chance is called so, and what is not is found."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.analyze.compare import ENOUGH_RUNS, LEVEL, compare, mann_whitney

# Far enough apart that another scale makes no two of them equal.
VALUES = st.lists(st.floats(0.001, 1000).map(lambda value: round(value, 6)), min_size=1, max_size=12)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 4), (5, 5), (2, 7)])
def test_the_exact_probability_is_that_of_all_orders(n: int, m: int) -> None:
    """Counted out: of all ways to choose the first sample's ranks, those at least as far from the middle."""
    everything = [sum(ranks) - n * (n + 1) / 2 for ranks in combinations(range(1, n + m + 1), n)]
    for ranks in combinations(range(1, n + m + 1), n):
        u = sum(ranks) - n * (n + 1) / 2
        far = min(u, n * m - u)
        expected = min(1.0, 2 * sum(item <= far for item in everything) / len(everything))
        others = [rank for rank in range(1, n + m + 1) if rank not in ranks]
        assert mann_whitney(list(ranks), others) == pytest.approx(expected)


def test_the_approximation_is_near_the_exact_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(0, 1, 20), random.normal(0.6, 1, 20)
    exact = mann_whitney(a, b)
    monkeypatch.setattr("ergometer.analyze.compare._EXACT", 0)
    assert mann_whitney(a, b) == pytest.approx(exact, rel=0.02) and 0.01 < exact < 0.5


@given(VALUES, VALUES)
def test_order_and_scale_do_not_matter(a: list[float], b: list[float]) -> None:
    p = mann_whitney(a, b)
    assert 0 <= p <= 1
    assert mann_whitney(b, a) == pytest.approx(p)
    assert mann_whitney(np.exp(np.log(a) / 10), np.exp(np.log(b) / 10)) == pytest.approx(p, rel=1e-6)


def test_equal_values_do_not_differ() -> None:
    assert mann_whitney([1.0] * 9, [1.0] * 9) == 1.0
    assert not compare([[1.0] * 40], [[1.0] * 40]).differs


def runs(random: np.random.Generator, count: int, factor: float, steps: int = 40) -> list[list[float]]:
    """Runs of the same spec: each has an offset of its own (2 %), its steps drift, and some are held up."""
    found = []
    for _ in range(count):
        level = factor * math.exp(random.normal(0, 0.02))
        drift = np.cumsum(random.normal(0, 0.001, steps))
        found.append(list(level * (1 + drift) * np.exp(random.gamma(0.5, 0.01, steps))))
    return found


def test_the_same_spec_is_called_no_difference_and_a_change_is_found() -> None:
    random = np.random.default_rng(0)
    alarms = sum(compare(runs(random, 8, 1.0), runs(random, 8, 1.0)).differs for _ in range(300))
    assert alarms <= 9  # 1 in 100 expected
    found = sum(compare(runs(random, 8, 1.0), runs(random, 8, 1.05)).differs for _ in range(100))
    assert found >= 85
    thirty = [compare(runs(random, 30, 1.0), runs(random, 30, 1.05)) for _ in range(20)]
    assert all(item.differs and item.low < 1.05 < item.high for item in thirty[:1])
    assert sum(item.low <= 1.05 <= item.high for item in thirty) >= 17


def test_single_runs_must_differ_by_more_than_runs_do() -> None:
    random = np.random.default_rng(2)
    steady = [list(1 + random.normal(0, 0.001, 30))]
    assert compare(steady, [[1.05 * value for value in steady[0]]]).differs  # n = 30, 5 %
    little = compare(steady, [[1.02 * value for value in steady[0]]])
    assert not little.differs and little.p < LEVEL and little.by == "parts of runs"
    alarms = sum(compare(runs(random, 1, 1.0), runs(random, 1, 1.0)).differs for _ in range(200))
    assert alarms < 80  # two single runs cannot tell; the verdict says that they are single


def test_enough_runs_can_reach_the_level() -> None:
    apart = mann_whitney(range(ENOUGH_RUNS), range(10, 10 + ENOUGH_RUNS))
    assert apart < LEVEL < mann_whitney(range(ENOUGH_RUNS - 1), range(10, 9 + ENOUGH_RUNS))
