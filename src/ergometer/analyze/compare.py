"""Whether two sets of runs differ, and by how much.

What varies between runs of the same spec is more than what varies within one: where memory lies, what else the
machine does. So where there are enough runs, each counts once, by its median, and chance is judged among runs. Where
there are not, the parts of the runs stand for them, and what is said holds for these runs alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ENOUGH_RUNS = 5  # on each side; with fewer, no arrangement of them is as rare as LEVEL
LEVEL = 0.01
PARTS = 30
_RESAMPLES = 4000
_EXACT = 400  # up to this product of sizes, and without ties, the distribution is counted out
# What two single runs of the same spec may differ by without that meaning anything.
_BETWEEN_RUNS = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """ratio: of the medians, second over first. by: runs, or parts of runs. differs: more than by chance."""

    first: float
    second: float
    ratio: float
    low: float
    high: float
    p: float
    n: tuple[int, int]
    by: str
    differs: bool


def compare(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Comparison:
    """Two sets of runs, each run with its values."""
    by_runs = min(len(first), len(second)) >= ENOUGH_RUNS
    a, b = ((_medians if by_runs else _parts)(runs) for runs in (first, second))
    ratio = float(np.median(b) / np.median(a))
    low, high = _interval(a, b)
    p = mann_whitney(a, b)
    apart = p < LEVEL and not low <= 1 <= high
    if not by_runs:
        apart = apart and abs(math.log(ratio)) > math.log1p(_BETWEEN_RUNS)
    return Comparison(
        first=float(np.median(a)),
        second=float(np.median(b)),
        ratio=ratio,
        low=low,
        high=high,
        p=p,
        n=(len(a), len(b)),
        by="runs" if by_runs else "parts of runs",
        differs=apart,
    )


def _medians(runs: Sequence[Sequence[float]]) -> Floats:
    return np.array([np.median(run) for run in runs])


def _parts(runs: Sequence[Sequence[float]]) -> Floats:
    """Neighbours resemble each other, so each run is cut into parts, and each part counts once."""
    return np.array([np.median(part) for run in runs for part in np.array_split(np.asarray(run), _count(run))])


def _count(run: Sequence[float]) -> int:
    return max(1, min(PARTS, len(run)))


def _interval(a: Floats, b: Floats) -> tuple[float, float]:
    """The middle 95 % of the ratio when both sides are drawn again, with repetition, from what was seen."""
    random = np.random.default_rng(0)
    again = [np.median(side[random.integers(0, len(side), (_RESAMPLES, len(side)))], axis=1) for side in (a, b)]
    low, high = np.percentile(again[1] / again[0], (2.5, 97.5))
    return float(low), float(high)


def mann_whitney(a: Any, b: Any) -> float:
    """The two-sided probability that samples from one source lie at least as far apart as these."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    both = np.concatenate([a, b])
    _, place, ties = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    n, m = len(a), len(b)
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    if n * m <= _EXACT and len(ties) == n + m:
        counts = _arrangements(n, m)
        tail = counts[: int(min(u, n * m - u)) + 1].sum() / counts.sum()
        return float(min(1.0, 2 * tail))
    total = n + m
    spread = n * m / 12 * (total + 1 - float((ties.astype(np.float64) ** 3 - ties).sum()) / (total * (total - 1)))
    if spread <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(spread)
    return math.erfc(z / math.sqrt(2))


def _arrangements(n: int, m: int) -> Floats:
    """How many orders of n and m values give each U: the coefficients of Gauss's binomial."""
    counts = np.zeros(n * m + 1)
    counts[0] = 1.0
    for k in range(1, n + 1):
        upper = m + k
        for at in range(len(counts) - 1, upper - 1, -1):
            counts[at] -= counts[at - upper]
        for at in range(k, len(counts)):
            counts[at] += counts[at - k]
    return counts
