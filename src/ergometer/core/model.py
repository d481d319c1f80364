"""A network of the suite, or the user's own."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """build(classes) returns the module; papers holds what each paper states, never used as a result.

    smallest: the least height and width; None if only `input` fits.
    """

    name: str
    title: str
    task: str
    input: tuple[int, ...]
    classes: int
    build: Callable[[int], Any]
    loss: str = "cross_entropy"
    papers: dict[str, str] = field(default_factory=dict)
    smallest: int | None = None

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether the network can take inputs of this shape."""
        if self.smallest is None:
            return shape == self.input
        return len(shape) == 3 and shape[0] == self.input[0] and min(shape[1:]) >= self.smallest

    def takes_what(self) -> str:
        if self.smallest is None:
            return "x".join(map(str, self.input))
        return f"{self.input[0]} channels of {self.smallest}x{self.smallest} or more"
