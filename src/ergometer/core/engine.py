"""The contract of an engine: one framework running one Spec."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ergometer.core.model import Model
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.core.spec import Spec


@dataclass(frozen=True, slots=True)
class Step:
    """Boundaries of one step in monotonic ns: one more mark than there are phases.

    issued: when the host issued each phase, where a device runs them later than that.
    """

    marks: tuple[int, ...]
    issued: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The losses of some steps, and the parameters that did not change in them, each with the reason."""

    losses: tuple[float, ...]
    stuck: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counted from the executed model, per step. bytes: read and written by its ops."""

    parameters: int
    macs_forward: int
    macs_backward: int
    bytes_forward: int
    bytes_backward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParts:
    """Bytes of the executed model. activations: what the forward pass leaves for the backward pass.

    Gradients and activations need not exist at the same time, so the parts may add up to more than the peak.
    """

    parameters: int
    gradients: int
    optimizer: int
    input: int
    activations: int
    device_peak: int | None = None


class Engine(Protocol):
    name: str
    title: str
    extra: str
    devices: tuple[str, ...]
    phases: tuple[str, ...]

    def probe(self, device: str) -> Probe: ...

    def prepare(self) -> None:
        """Load the framework and run a trivial step, so that what it needs for itself is in place."""

    def versions(self) -> dict[str, str]: ...

    def threads(self) -> int:
        """How many threads the engine uses on the CPU."""

    def load(self, spec: Spec, model: Model, batch: Sequence[Any]) -> None:
        """Build the model and move one batch (inputs, labels as numpy arrays) to the device."""

    def step(self) -> Step: ...

    def sync(self) -> None: ...

    def learn(self, steps: int) -> Learning:
        """Train on the fixed batch and report the losses and the parameters that did not change."""

    def ops(self, steps: int) -> list[Span]:
        """Run that many steps under the tracer; spans of kind step, phase and op, in monotonic ns."""

    def memory(self) -> tuple[MemoryParts, list[Span]]:
        """Run one step under the memory tracer; the parts, and op spans with their bytes."""

    def counts(self) -> Counts: ...

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether the framework's error means that memory ran out."""

    def close(self) -> None: ...
