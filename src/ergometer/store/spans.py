"""Spans as columns: compact on disk, fast to join."""

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ergometer.core.errors import StoreError
from ergometer.core.span import Span
from ergometer.store.home import cannot_write

_TEXTS = ("kind", "name", "phase", "layer")
_NUMBERS = ("start_ns", "end_ns", "step", "memory_bytes")


@dataclass(frozen=True, slots=True)
class SpanTable:
    """One array per field; texts are numbers into `words`."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    step: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    kind: NDArray[np.int64]
    name: NDArray[np.int64]
    phase: NDArray[np.int64]
    layer: NDArray[np.int64]
    words: tuple[str, ...]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Self:
        rows = list(spans)
        numbers: dict[str, int] = {}
        columns = {
            field: np.array([numbers.setdefault(getattr(row, field), len(numbers)) for row in rows], dtype=np.int64)
            for field in _TEXTS
        }
        columns |= {field: np.array([getattr(row, field) for row in rows], dtype=np.int64) for field in _NUMBERS}
        return cls(**columns, words=tuple(numbers))

    def __len__(self) -> int:
        return len(self.start_ns)

    def where(self, mask: NDArray[np.bool_]) -> "SpanTable":
        columns = {field: getattr(self, field)[mask] for field in (*_TEXTS, *_NUMBERS)}
        return SpanTable(**columns, words=self.words)

    def select(self, **texts: str) -> "SpanTable":
        """The spans whose named text fields have these values."""
        mask = np.ones(len(self), dtype=bool)
        for field, text in texts.items():
            number = self.words.index(text) if text in self.words else -1
            mask &= getattr(self, field) == number
        return self.where(mask)

    @property
    def duration_s(self) -> NDArray[np.float64]:
        return np.asarray((self.end_ns - self.start_ns) * 1e-9, dtype=np.float64)

    def save(self, path: Path) -> None:
        arrays = {field: getattr(self, field) for field in _NUMBERS}
        arrays |= {field: getattr(self, field).astype(np.uint32) for field in _TEXTS}
        # Differences compress far better than stamps.
        arrays["start_ns"] = np.diff(self.start_ns, prepend=0)
        arrays["end_ns"] = self.end_ns - self.start_ns
        save_arrays(path, {**arrays, "words": np.array(self.words, dtype=np.str_)})

    @classmethod
    def load(cls, path: Path) -> Self:
        arrays = load_arrays(path, (*_TEXTS, *_NUMBERS, "words"))
        arrays["start_ns"] = np.cumsum(arrays["start_ns"])
        arrays["end_ns"] = arrays["start_ns"] + arrays["end_ns"]
        words = tuple(str(word) for word in arrays.pop("words"))
        columns = {field: array.astype(np.int64) for field, array in arrays.items()}
        if len({len(column) for column in columns.values()}) > 1:
            raise StoreError(f"{path} is damaged: its columns differ in length.")
        return cls(**columns, words=words)


def save_arrays(path: Path, arrays: dict[str, NDArray[np.generic]]) -> None:
    temporary = path.with_name(f".{path.name}")
    try:
        with open(temporary, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(path, error) from error


def load_arrays(path: Path, fields: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The named arrays; StoreError if the file is missing, damaged or not ours."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {field: arrays[field] for field in fields}
    except FileNotFoundError:
        raise StoreError(f"{path} is missing: this run's details were deleted or never written.") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        why = "not columns of numbers" if "pickle" in str(error) else str(error)
        raise StoreError(f"{path} is damaged ({why}): its run's details cannot be shown.") from error
