"""Batches of a finite set of samples, and whether they fit a model."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Request
from ergometer.core.errors import UsageError
from ergometer.core.model import Field

Arrays = Mapping[str, NDArray[Any]]
Make = Callable[[NDArray[np.int64], np.random.Generator], Arrays]


class Shuffled:
    """Batches without end, in an order that the seed decides for each epoch; what is left of an epoch is dropped.

    make(indices, random) returns an array for each field. length: the samples in the split.
    """

    fixed = False

    def __init__(self, name: str, request: Request, length: int, make: Make):
        if request.batch > length:
            raise UsageError(
                f"{name} has {length} samples to {request.split} with and a batch takes {request.batch}: "
                + (f"use --batch {length} or less." if length else "give a larger data set with --data-dir.")
            )
        self.length = length
        self._fields = request.fields
        self._batch = request.batch
        self._make = make
        self._random = np.random.default_rng(request.seed)
        self._order = np.arange(0)
        self._next = 0

    def batch(self) -> tuple[NDArray[Any], ...]:
        if self._next + self._batch > len(self._order):
            self._order, self._next = self._random.permutation(self.length), 0
        indices = self._order[self._next : self._next + self._batch]
        self._next += self._batch
        return ordered(self._fields, self._make(indices, self._random))


def ordered(fields: tuple[Field, ...], arrays: Arrays) -> tuple[NDArray[Any], ...]:
    """The arrays in the fields' order and of their types."""
    return tuple(arrays[f.name].astype(np.float32 if f.high is None else np.int64, copy=False) for f in fields)


def check_fields(name: str, request: Request, optional: tuple[str, ...] = (), **offered: int) -> dict[str, Field]:
    """The request's fields by name; UsageError if they are not those offered, each with so many dimensions."""
    fields = {field.name: field for field in request.fields}
    wrong = any(offered.get(field.name) != len(field.shape) for field in request.fields)
    if wrong or offered.keys() - fields.keys() - set(optional):
        wanted = ", ".join(f"{f.name} ({len(f.shape)}-d)" for f in request.fields)
        gives = ", ".join(f"{key} ({dimensions}-d)" for key, dimensions in offered.items())
        raise UsageError(f"{name} gives {gives} and the model wants {wanted}: choose other data with --data.")
    return fields


def check_lengths(name: str, *fields: Field) -> int:
    """The length that the fields share; UsageError if they differ."""
    lengths = {field.shape[0] for field in fields}
    if len(lengths) > 1:
        names = ", ".join(field.name for field in fields)
        raise UsageError(f"{name} gives {names} of one length and the model wants them of several: change the model.")
    return lengths.pop()


def check_count(name: str, what: str, count: int, field: Field | None) -> None:
    """UsageError if the field cannot number so many classes (what: classes, words, characters)."""
    if field is not None and field.high is not None and count > field.high:
        raise UsageError(f"{name} has {count} {what} and the model takes {field.high}: use --classes {count}.")
