"""A source of batches, synthetic or real."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ergometer.core.model import Field
from ergometer.core.probe import Probe


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file to download. size in bytes; 0, and an empty sha256, where nobody publishes them."""

    name: str
    address: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a model needs of a data set. folder: where its files are; split: train or test."""

    fields: tuple[Field, ...]
    batch: int
    seed: int
    folder: Path | None = None
    split: str = "train"


class Stream(Protocol):
    """fixed: every batch is the same one, so one is enough."""

    fixed: bool

    def batch(self) -> tuple[Any, ...]:
        """The next batch: a numpy array for each field, in their order."""


class Environment(Stream, Protocol):
    """A world that the network acts in; batch() draws from what it has lived through."""

    def play(self, policy: Callable[[Any], Any]) -> None:
        """Act as often as belongs to one training step; policy maps states to scores, both numpy arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """open(request) returns a Stream. tasks: the tasks of models that it fits.

    classes: how many there are; 0 if the folder or the model decides. files: what is downloaded into the cache
    where the user names no folder. layout: what a folder that the user names must hold; empty if none is read.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    open: Callable[[Request], Any]
    probe: Callable[[], Probe] = lambda: Probe(True, "built in")
    classes: int = 0
    files: tuple[File, ...] = ()
    layout: str = ""
