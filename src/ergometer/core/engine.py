"""The contract of an engine: one framework running one Spec."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ergometer.core.dataset import Environment
from ergometer.core.model import Model, Pass
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.core.spec import Spec

# Of every engine: velocity = MOMENTUM * velocity + gradient; parameter -= LEARNING_RATE * velocity
LEARNING_RATE = 0.01
MOMENTUM = 0.9


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
    None: the engine does not tell.
    """

    parameters: int
    gradients: int | None
    optimizer: int
    input: int
    activations: int | None
    device_peak: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer and one sample. activations: bytes that it keeps for the backward pass."""

    name: str
    kind: str
    output: tuple[int, ...]
    parameters: int
    macs: int
    activations: int


class Engine(Protocol):
    """options: by name, the choices that `--engine NAME:option=choice` gives; the first is the default.

    portable: it runs canonical graphs, made ready by `build`, and not torch modules.
    slow_start: it compiles for so long before its first step that it is not tried without being asked for.

    untraced: why it cannot time single operations; empty if it can. strict: the largest relative error that a
    gradient may have against double precision in a smooth network (all together: a tenth). loose: that all gradients
    together may have in a network with ReLU, whose masks rounding flips. remarks: what a user must know of a network
    that was loaded.
    """

    name: str
    title: str
    extra: str
    devices: tuple[str, ...]
    modes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    portable: bool
    slow_start: bool
    untraced: str
    strict: float
    loose: float
    phases: tuple[str, ...]
    passes: tuple[Pass, ...]
    remarks: list[str]

    def probe(self, device: str) -> Probe: ...

    def prepare(self) -> None:
        """Load the framework and run a trivial step, so that what it needs for itself is in place."""

    def versions(self) -> dict[str, str]: ...

    def threads(self) -> int:
        """How many threads the engine uses on the CPU."""

    def load(self, spec: Spec, model: Model, batch: Sequence[Any], environment: Environment | None = None) -> None:
        """Build the model and move one batch (a numpy array per field) to the device.

        With an environment, every training step first acts in it and takes its batch from there.
        """

    def rehearse(self, masks: dict[str, Any]) -> dict[str, Any]:
        """One step with these dropout masks; its loss or scores as RESULT.

        In training also the state after it: every parameter, its velocity (VELOCITY before the name: what the
        optimizer keeps, after the first step the gradient) and every buffer.
        """

    def feed(self, batch: Sequence[Any]) -> None:
        """Move another batch to the device, for the next steps."""

    def step(self) -> Step: ...

    def sync(self) -> None: ...

    def learn(self, steps: int, number: int = 0) -> Learning:
        """Train on the fixed batch, one pass of the step alone; the losses and what did not change."""

    def ops(self, steps: int) -> list[Span]:
        """Run that many steps under the tracer; spans of kind step, phase and op, in monotonic ns."""

    def memory(self) -> tuple[MemoryParts, list[Span]]:
        """Run one step under the memory tracer; the parts, and op spans with their bytes."""

    def counts(self) -> Counts: ...

    def layers_of(self, model: Model) -> list[Layer]:
        """Every layer of the model in the order of execution, found without running it on data."""

    def out_of_memory(self, error: BaseException) -> bool:
        """Whether the framework's error means that memory ran out."""

    def close(self) -> None: ...
