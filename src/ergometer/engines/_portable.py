"""What engines that run a canonical graph share. Each brings `build` and `open`, and a Session."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol
from zlib import crc32

import numpy as np

from ergometer.core.clock import now_ns
from ergometer.core.dataset import Environment
from ergometer.core.engine import LEARNING_RATE, Counts, Layer, Learning, MemoryParts, Step
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.graph import RESULT, VELOCITY, Graph, Lowered
from ergometer.core.model import Model, Pass
from ergometer.core.probe import Probe
from ergometer.core.random import Random
from ergometer.core.span import Span
from ergometer.core.spec import Spec


class Session(Protocol):
    """A network in an engine's hands."""

    def feed(self, batch: dict[str, Any]) -> None:
        """The arrays of the graph's inputs, for the next steps."""

    def step(self, masks: dict[str, Any]) -> None:
        """One whole training step, or one forward pass; it ends when the work is done."""

    def result(self) -> Any:
        """The loss, or the scores, of the last step."""

    def state(self) -> Iterator[tuple[str, Any]]:
        """Every parameter, its velocity (`velocity/NAME`) and every buffer, as they are now."""


class Portable(ABC):
    """An engine without a model definition of its own."""

    name: str
    title: str
    extra: str
    package: str
    distribution: str
    oldest: tuple[int, ...] = ()
    before: tuple[int, ...] = ()  # the first version that is too new; empty if none is known
    excludes: tuple[str, ...] = ()  # distributions that bring the same package
    devices: tuple[str, ...] = ("cpu",)
    modes: tuple[str, ...] = ("train", "infer")
    options: ClassVar[dict[str, tuple[str, ...]]] = {}
    portable = True
    slow_start = False
    untraced = "it does not tell the time of single operations"
    strict = 0.02
    loose = 0.1

    def __init__(self) -> None:
        self.phases: tuple[str, ...] = ()
        self.passes = (Pass(name="", loss=_by_graph),)
        self.remarks: list[str] = []

    @abstractmethod
    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path) -> None:
        """Write what `open` needs into the folder. May use what a device does not have."""

    @abstractmethod
    def open(self, lowered: Lowered, device: str, threads: int) -> Session:
        """The network in the engine's hands, from what `build` wrote."""

    def probe(self, device: str) -> Probe:
        remedy = f"pip install 'ergometer[{self.extra}]'"
        other = next((name for name in self.excludes if installed(name)), None)
        if other:
            why = f"{other} is installed, and {self.distribution} would overwrite it"
            return Probe(False, why, f"give {self.name} an environment of its own (docs/engines.md): {remedy} there")
        if find_spec(self.package) is None or not installed(self.distribution):
            return Probe(False, f"{self.distribution} is not installed", remedy)
        if device not in self.devices:
            return Probe(False, f"{self.name} here runs on {' or '.join(self.devices)}, not on {device!r}")
        version = _version(self.distribution)
        if _numbers(version) < self.oldest:
            return Probe(False, f"{self.distribution} {version} is older than {_dotted(self.oldest)}", remedy)
        if self.before and _numbers(version) >= self.before:
            return Probe(False, f"{self.distribution} {version} is not older than {_dotted(self.before)}", remedy)
        return Probe(True, version)

    def prepare(self) -> None:
        try:
            self.bring()
        except (ImportError, OSError) as error:
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise UnavailableError(
                f"{self.distribution} is installed but does not load ({first}): install what it names, or install it "
                f"anew (pip install --force-reinstall 'ergometer[{self.extra}]')."
            ) from error

    def bring(self) -> None:
        """Import the framework."""
        import_module(self.package)

    def versions(self) -> dict[str, str]:
        return {self.name: _version(self.distribution)}

    def threads(self) -> int:
        return self._threads

    def load(self, spec: Spec, model: Model, batch: Sequence[Any], environment: Environment | None = None) -> None:
        assert model.lowered is not None
        self.lowered, self.graph = model.lowered, model.lowered.graph
        self.training = spec.mode == "train"
        self.phases = ("step",) if self.training else ("forward",)
        self.names = [item.name for item in model.fields()]
        self._threads = spec.threads or len(os.sched_getaffinity(0))
        self.random = Random(spec.seed)
        self.session = self.open(self.lowered, spec.device, self._threads)
        self.feed(batch)

    def feed(self, batch: Sequence[Any]) -> None:
        fields = dict(zip(self.names, batch, strict=True))
        self.session.feed({name: fields[name] for name in self.graph.inputs})

    def step(self) -> Step:
        start = now_ns()
        self.session.step(draw_masks(self.graph, self.random))
        return Step((start, now_ns()))

    def rehearse(self, masks: dict[str, Any]) -> dict[str, Any]:
        self.session.step(masks)
        found = {name: np.array(array) for name, array in self.session.state()} if self.training else {}
        return found | {RESULT: np.array(self.session.result())}

    def sync(self) -> None:  # noqa: B027 - a step ends when its work is done
        pass

    def learn(self, steps: int, number: int = 0) -> Learning:
        before = self._summary()
        losses = []
        for _ in range(steps):
            self.step()
            losses.append(float(self.session.result()))
        after = self._summary()
        stuck = {}
        for name in self.graph.parameters:
            if after[name] != before[name]:
                continue
            velocity, size = after[VELOCITY + name][1], after[name][1]
            if velocity == 0.0:
                stuck[name] = "its gradient is zero or absent"
            elif velocity * LEARNING_RATE > size * 1e-6:
                stuck[name] = "it has a gradient but is not updated"
            # otherwise the update is below the precision of the parameter, as before a batch-norm
        return Learning(losses=tuple(losses), stuck=stuck)

    def _summary(self) -> dict[str, tuple[int, float]]:
        """A digest and the largest magnitude of every array: a copy would raise the peak that is being measured."""
        return {name: (_digest(array), _largest(array)) for name, array in self.session.state()}

    def ops(self, steps: int) -> list[Span]:
        raise UsageError(self.untraced)

    def memory(self) -> tuple[MemoryParts, list[Span]]:
        trained = self.graph.bytes_of(self.graph.parameters)
        frozen = self.graph.bytes_of((*self.graph.constants, *self.graph.buffers))
        parts = MemoryParts(
            parameters=trained + frozen,
            gradients=None if self.training else 0,
            optimizer=trained,
            input=self.graph.bytes_of(self.graph.inputs),
            activations=None,
        )
        return parts, []

    def counts(self) -> Counts:
        return Counts(**self.lowered.counts)

    def layers_of(self, model: Model) -> list[Layer]:
        raise UsageError(f"{self.name} does not know the layers of a network: ask torch.")

    def out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def close(self) -> None:  # noqa: B027 - nothing to give back unless an engine says so
        pass


def draw_masks(graph: Graph, random: Random) -> dict[str, Any]:
    """Fresh dropout masks."""
    masks = {}
    for name, drop in graph.masks.items():
        kept = random.uniform(graph.values[name].shape) >= drop
        masks[name] = kept.astype(np.float32) / np.float32(1 - drop)
    return masks


def _by_graph(*_: Any) -> Any:
    raise AssertionError("the loss is part of the graph")


def _largest(array: Any) -> float:
    """The largest magnitude, without a copy."""
    return float(max(array.max(), -array.min()))


def _digest(array: Any) -> int:
    return crc32(np.ascontiguousarray(array).data)


def installed(distribution: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _version(distribution: str) -> str:
    from importlib import metadata  # megabytes that a step does not need

    return metadata.version(distribution)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
