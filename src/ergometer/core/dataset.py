"""A source of training batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """batch(input shape, classes, batch size, seed) returns numpy arrays: inputs, labels."""

    name: str
    title: str
    batch: Callable[[tuple[int, ...], int, int, int], Sequence[Any]]
