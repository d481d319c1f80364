"""A network of the suite, or the user's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """build(classes) returns the module; papers holds what each paper states, never used as a result."""

    name: str
    title: str
    task: str
    input: tuple[int, ...]
    classes: int
    build: Callable[[int], Any]
    loss: str = "cross_entropy"
    papers: dict[str, str] = field(default_factory=dict)
