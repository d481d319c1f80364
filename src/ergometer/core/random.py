"""Random numbers that are the same on every device and with every version of numpy.

A bundle is proved on the device with data that another machine drew, so the stream must not change. And
numpy.random takes 7 MB of the memory that is being measured: more than a small network.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_PART = 1 << 12  # numbers drawn at once: what is in between must not show in the peak of memory


class Random:
    """splitmix64 (Steele, Lea, Flood 2014): number i of a seed is a mix of seed + i times the golden ratio."""

    def __init__(self, seed: int):
        self._next = _mixed_one(seed & _MASK)

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Standard normal float32 (Box and Muller)."""
        made = np.empty(shape, np.float32)
        for part in _parts(made):
            half = (len(part) + 1) // 2
            radius = np.sqrt(-2 * np.log1p(-self._fractions(half)))
            angle = 2 * math.pi * self._fractions(half)
            part[:half] = radius * np.cos(angle)
            part[half:] = (radius * np.sin(angle))[: len(part) - half]
        return made

    def uniform(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """float32 from 0 to below 1."""
        made = np.empty(shape, np.float32)
        for part in _parts(made):
            part[:] = (self._bits(len(part)) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
        return made

    def integers(self, high: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """int64 from 0 to below high."""
        made = np.empty(shape, np.int64)
        for part in _parts(made):
            part[:] = self._fractions(len(part)) * high
        return made

    def coins(self, count: int) -> NDArray[np.uint8]:
        """uint8, each 0 or 1."""
        words = self._bits((count + 63) // 64).astype("<u8")
        return np.unpackbits(words.view(np.uint8), count=count)

    def _fractions(self, count: int) -> NDArray[np.float64]:
        """float64 from 0 to below 1."""
        return (self._bits(count) >> np.uint64(11)).astype(np.float64) * 2**-53

    def _bits(self, count: int) -> NDArray[np.uint64]:
        z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN) + np.uint64(self._next)
        self._next = (self._next + count * _GOLDEN) & _MASK
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _mixed_one(seed: int) -> int:
    """A start far from those of neighbouring seeds."""
    z = (seed + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _parts(array: Any) -> Iterator[Any]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PART):
        yield flat[start : start + _PART]
