"""Medians with honest intervals, and when a series of times is steady."""

import math
from collections.abc import Sequence

TARGET = 0.02  # half-width of the 95 % interval, relative to the median
FEWEST = 6  # below six values no order statistic reaches 95 %
_SETTLED = 0.05
_WINDOW = 5
_DRIFT = 0.05


def _lower_rank(n: int) -> int:
    """The 1-based rank of the lower end of the 95 % interval of the median; 0 if n is too small.

    The median lies between the k-th smallest and the k-th largest of n values with probability
    1 - 2 * P(Binomial(n, 1/2) < k), whatever the distribution.
    """
    if n > 1000:
        return math.floor(n / 2 - 0.98 * math.sqrt(n))
    tail, term, rank = 0.0, 0.5**n, 0
    for k in range(n + 1):
        tail += term
        if tail > 0.025:
            break
        rank = k + 1
        term *= (n - k) / (k + 1)
    return rank


def median_interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """(median, low, high) with the distribution-free 95 % interval; None, None below six values."""
    ordered = sorted(values)
    n = len(ordered)
    median = _middle(ordered)
    rank = _lower_rank(n)
    if rank == 0:
        return median, None, None
    return median, ordered[rank - 1], ordered[n - rank]


def _middle(ordered: Sequence[float]) -> float:
    """numpy's median imports two megabytes, which the measured process would count as the network's."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def spread(values: Sequence[float]) -> float:
    """How far the 95 % interval reaches from the median, relative to it; infinite below six values."""
    median, low, high = median_interval(values)
    if low is None or high is None or median <= 0:
        return math.inf
    return max(high - median, median - low) / median


def settled(times: Sequence[float]) -> bool:
    """Whether the newest five times are no longer faster or slower than the five before them."""
    if len(times) < 2 * _WINDOW:
        return False
    before = _middle(sorted(times[-2 * _WINDOW : -_WINDOW]))
    after = _middle(sorted(times[-_WINDOW:]))
    return abs(after - before) <= _SETTLED * before


def drift(times: Sequence[float]) -> float:
    """Relative change of the median from the first third to the last, 0 where it is within their spread."""
    third = len(times) // 3
    if third < FEWEST:
        return 0.0
    first, first_low, first_high = median_interval(times[:third])
    last, last_low, last_high = median_interval(times[-third:])
    assert first_low is not None and first_high is not None and last_low is not None and last_high is not None
    apart = last_low > first_high or last_high < first_low
    change = (last - first) / first
    return change if apart and abs(change) > _DRIFT else 0.0
