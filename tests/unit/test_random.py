import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.core.random import Random

SIZE = 100_000


def test_the_stream_is_that_of_splitmix64():
    """The published first numbers of splitmix64 from state 0."""
    random = Random(0)
    random._next = 0
    assert [f"{int(number):016X}" for number in random._bits(3)] == [
        "E220A8397B1DCDAF",
        "6E789E6AA1B965F4",
        "06C45D188009454F",
    ]


def test_it_never_changes():
    """A bundle made by an older version is proved with the numbers that it was made with."""
    random = Random(7)
    assert random.normal((2,)) == pytest.approx([-0.942257643, -1.29185283], abs=1e-6)
    assert random.uniform((2,)) == pytest.approx([0.549374282, 0.604234755], abs=1e-7)
    assert random.integers(10, (6,)).tolist() == [3, 1, 9, 9, 8, 1]
    assert random.coins(8).tolist() == [0, 1, 1, 1, 0, 0, 0, 0]


def test_normal():
    drawn = np.sort(Random(1).normal((SIZE,)).astype(np.float64))
    expected = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in drawn])
    distance = np.abs(expected - (np.arange(SIZE) + 0.5) / SIZE).max()  # Kolmogorov and Smirnov
    assert distance < 1.95 / math.sqrt(SIZE)


def test_uniform():
    drawn = np.sort(Random(2).uniform((SIZE,)))
    assert drawn[0] >= 0
    assert drawn[-1] < 1
    assert np.abs(drawn - (np.arange(SIZE) + 0.5) / SIZE).max() < 1.95 / math.sqrt(SIZE)


def test_integers_and_coins_are_even():
    counts = np.bincount(Random(3).integers(10, (SIZE,)), minlength=10)
    assert ((counts - SIZE / 10) ** 2 / (SIZE / 10)).sum() < 27.9  # chi-squared of 9, once in a thousand
    assert abs(Random(4).coins(SIZE).mean() - 0.5) < 4 / (2 * math.sqrt(SIZE))


def test_neighbouring_seeds_are_strangers():
    first, second = Random(0).normal((SIZE,)), Random(1).normal((SIZE,))
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(SIZE)


@given(st.integers(0, 2**63), st.lists(st.integers(0, 40), max_size=3).map(tuple), st.integers(1, 2**40))
def test_shapes_and_bounds(seed, shape, high):
    random = Random(seed)
    assert random.normal(shape).shape == random.uniform(shape).shape == shape
    whole = random.integers(high, shape)
    assert whole.shape == shape
    assert ((whole >= 0) & (whole < high)).all()
    assert np.isfinite(random.normal(shape)).all()
