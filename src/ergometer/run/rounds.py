"""What settings took in rounds of turns, and which of them that shows to be better."""

import math
import statistics
from collections.abc import Collection, Sequence

from ergometer.analyze.statistics import median_interval

SURE = 8  # rounds, before which an interval says too little


class Rounds:
    """Seconds of a step by setting, round by round; what shares a round was measured side by side."""

    def __init__(self) -> None:
        self._found: list[dict[str, float]] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, found: dict[str, float]) -> None:
        self._found.append(found)

    def drop_last(self) -> None:
        del self._found[-1:]

    def of(self, one: str) -> list[float]:
        return [found[one] for found in self._found if one in found]

    def shared(self, names: Collection[str]) -> list[dict[str, float]]:
        """What these took, in the rounds that all of them had."""
        return [{name: found[name] for name in names} for found in self._found if all(name in found for name in names)]

    def ratios(self, one: str, other: str) -> list[float]:
        """How many times the other it takes, in each of the rounds that both had."""
        return [found[one] / found[other] for found in self.shared((one, other))]


def is_surely_above(ratios: Sequence[float], bound: float) -> bool:
    """Whether the whole 95 % interval of the median is."""
    if len(ratios) < SURE:
        return False
    _, low, _ = median_interval(ratios)
    return low is not None and low > bound


def behind(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """How many times the (geometric) middle of all each takes, by the median over these rounds, which all had."""
    middles = [math.prod(found.values()) ** (1 / len(found)) for found in rounds]
    return {
        name: statistics.median(found[name] / middle for found, middle in zip(rounds, middles, strict=True))
        for name in rounds[0]
    }
