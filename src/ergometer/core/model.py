"""A network of the suite, or the user's own."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ergometer.core.errors import UsageError
from ergometer.core.graph import Lowered
from ergometer.core.quantity import format_shape

Choice = int | str


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a batch, without its batch axis: whole numbers below `high`, or float32 where it is None."""

    name: str
    shape: tuple[int, ...]
    high: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One of several optimisations in a training step, each with a loss and an optimizer of its own.

    loss(module, companion, batch) returns the loss. parameters: the prefix of the ones it trains.
    """

    name: str
    loss: Callable[[Any, Any, tuple[Any, ...]], Any]
    parameters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a paper measured on its own device: batch size -> value in the unit that the metric has here.

    options, input: those with which the network is the paper's, if not the network's own.
    """

    paper: str
    device: str
    engine: str
    mode: str
    metric: str
    values: dict[int, float]
    options: str = ""
    input: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """build(input, classes, **options) returns the module, which maps a batch to scores, classes last.

    parameters, macs: true counts (macs forward, of one sample) with the default input, classes and options.
    papers: what each paper states, shown beside the true counts and never used as a result.
    published: what papers measured with it, shown beside what is measured here.
    classes: 0 where the options decide. smallest, largest: bounds of height and width, or of a sequence.
    alone: the smallest at which one sample alone can be trained on; below, batch-norm would see a single value.
    options: default (a whole number), or the choices (the first is the default).
    layout(input, classes, **options): the fields of a sample, if not an image and its label.
    feeds: the fields that the module's forward takes, if not all but the last.
    passes: how to train it, if not by the cross-entropy of its scores and the last field.
    companion: builds a frozen network that training needs beside this one (a mentor, a target network);
    refresh: copy the weights into the companion every so many steps.
    rehearsal: the options with which engines are proved, where double precision of the default takes too much memory.
    """

    name: str
    title: str
    task: str
    input: tuple[int, ...]
    classes: int
    build: Callable[..., Any]
    parameters: int | None = None
    macs: int | None = None
    papers: dict[str, str] = field(default_factory=dict)
    published: tuple[Published, ...] = ()
    smallest: int = 1
    alone: int = 0
    largest: int | None = None
    refuse: Callable[[tuple[int, ...]], str] | None = None
    options: dict[str, int | tuple[str, ...]] = field(default_factory=dict)
    chosen: dict[str, Choice] = field(default_factory=dict)
    layout: Callable[..., tuple[Field, ...]] | None = None
    feeds: tuple[str, ...] | None = None
    passes: tuple[Pass, ...] = ()
    companion: Callable[..., Any] | None = None
    refresh: int = 0
    rehearsal: str = ""
    data: str = "synthetic"
    file: Path | None = None
    lowered: Lowered | None = None

    def settle(self, shape: tuple[int, ...] | None, classes: int | None, chosen: dict[str, Choice]) -> "Model":
        """This model with the user's input shape, classes and options; UsageError for what it cannot take."""
        if classes is not None and not self.classes:
            raise UsageError(f"{self.name} takes no --classes: {self._option_help()}.")
        shape = shape or self.input
        takes = self.takes_what(shape)
        if takes:
            raise UsageError(f"{self.name} cannot take {format_shape(shape)}: it takes {takes}.")
        return replace(self, chosen=chosen, input=shape, classes=classes or self.classes)

    def takes_what(self, shape: tuple[int, ...]) -> str:
        """What the network takes, if it cannot take inputs of this shape; otherwise nothing."""
        if self.refuse is not None:
            return self.refuse(shape)
        sides = shape[1:] if len(shape) == 3 else shape
        if len(shape) == len(self.input) and min(sides) >= self.smallest and max(sides) <= (self.largest or max(sides)):
            return ""
        bound = f"{self.smallest} or more" if self.largest is None else f"{self.smallest} to {self.largest}"
        return f"images of {bound} pixels a side (CxHxW)" if len(self.input) == 3 else f"a sequence of {bound}"

    def settings(self) -> dict[str, Choice]:
        """Every option with its chosen or default value."""
        defaults = {name: value[0] if isinstance(value, tuple) else value for name, value in self.options.items()}
        return defaults | self.chosen

    def make(self) -> Any:
        """The module, with fresh weights."""
        return self.build(self.input, self.classes, **self.settings())

    def make_companion(self) -> Any:
        return None if self.companion is None else self.companion(self.input, self.classes, **self.settings())

    def fields(self) -> tuple[Field, ...]:
        if self.layout is not None:
            return self.layout(self.input, self.classes, **self.settings())
        return Field("image", self.input), Field("label", (), self.classes)

    def parse_options(self, text: str) -> dict[str, Choice]:
        """The options in `width=256,depth=4`; UsageError for one that does not exist."""
        chosen: dict[str, Choice] = {}
        for word in filter(None, text.split(",")):
            name, _, value = word.partition("=")
            schema = self.options.get(name)
            if schema is None:
                raise UsageError(f"{self.name} has no option {name!r}: {self._option_help()}.")
            if isinstance(schema, tuple):
                if value not in schema:
                    raise UsageError(f"{self.name}:{word} does not exist: choose from {', '.join(schema)}.")
                chosen[name] = value
            elif value.isascii() and value.isdigit() and 1 <= int(value) <= 65536:
                chosen[name] = int(value)
            else:
                raise UsageError(f"{self.name}:{word} is not a whole number from 1 to 65536.")
        return chosen

    def _option_help(self) -> str:
        if not self.options:
            return "it has none"
        shown = [f"{k}={'|'.join(v) if isinstance(v, tuple) else v}" for k, v in self.options.items()]
        return f"write {self.name}:{','.join(shown)}"
