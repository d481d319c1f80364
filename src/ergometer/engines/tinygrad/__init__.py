"""tinygrad: the graph said in its tensors, differentiated by it, and compiled into one step."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from ergometer.core.clock import now_ns
from ergometer.core.dataset import Environment
from ergometer.core.engine import MemoryParts, Step
from ergometer.core.errors import UnavailableError
from ergometer.core.graph import Graph, Lowered
from ergometer.core.model import Model
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.engines._phases import spans_of
from ergometer.engines._portable import Portable
from ergometer.engines.tinygrad import _devices as devices
from ergometer.engines.tinygrad._placed import find_lacking
from ergometer.engines.tinygrad._products import Products, digest
from ergometer.engines.tinygrad._session import Session

# Which products an accelerator gets, of the forward pass, of the input gradient and of the filter gradient.
_PLACES = {
    "both": ("forward", "input", "filter"),
    "forward": ("forward",),
    "forward+input": ("forward", "input"),
    "forward+filter": ("forward", "filter"),
    "none": (),
}
# What OpenCL and CUDA say; a buffer may be larger than the device allows for one.
_NO_MEMORY = ("OUT_OF_HOST_MEMORY", "ALLOCATION_FAILURE", "INVALID_BUFFER_SIZE", "out of memory")


class Tinygrad(Portable):
    name = "tinygrad"
    title = "tinygrad, one compiled step"
    extra = "tinygrad"
    package = "tinygrad"
    distribution = "tinygrad"
    oldest = (0, 14)
    before = (0, 15)
    slow_start = True
    devices = ("cpu", "opencl", "cuda")
    untraced = ""
    options: ClassVar[dict[str, tuple[str, ...]]] = {"accelerate": tuple(_PLACES), "precision": ("float32", "tf32")}

    def probe(self, device: str) -> Probe:
        found = super().probe(device)
        return devices.probe(device, found) if found.ok else found

    def bring(self) -> None:
        devices.set_environment()
        super().bring()

    def build(
        self, graph: Graph, arrays: dict[str, Any], folder: Path, accelerate: str = "", precision: str = ""
    ) -> None:
        """Nothing: the kernels depend on the device, which compiles them (and keeps them in tinygrad's own cache)."""

    def load(self, spec: Spec, model: Model, batch: Sequence[Any], environment: Environment | None = None) -> None:
        self.accelerate = spec.options.get("accelerate", "both")
        self.products = Products(tf32=spec.options.get("precision") == "tf32")
        super().load(spec, model, batch, environment)

    def versions(self) -> dict[str, str]:
        return super().versions() | {"ergometer's part": digest()}

    def out_of_memory(self, error: BaseException) -> bool:
        return super().out_of_memory(error) or any(word in str(error) for word in _NO_MEMORY)

    def open(self, lowered: Lowered, device: str, threads: int) -> Session:
        devices.set_environment()
        devices.set_threads(threads)
        session = self._session(lowered, device)
        self._threads = threads if any(map(devices.threaded, session.devices)) else 1
        return session

    def _session(self, lowered: Lowered, device: str) -> Session:
        """What the accelerator cannot run is left to the host."""
        from tinygrad.device import CompileError

        places = _PLACES[self.accelerate]
        host, accelerator = devices.find(device, alone=self.accelerate == "both")
        if self.products.tf32 and not (places and devices.limits_of(accelerator).ampere):
            raise UnavailableError("precision=tf32 is of products on NVIDIA GPUs since Ampere: leave it out here.")
        try:
            return Session(lowered.graph, lowered.arrays, host, accelerator, places, self.products)
        except (CompileError, RuntimeError) as error:
            if device == "cpu" or self.out_of_memory(error):
                raise
            lacking = find_lacking(lowered.graph, self.products, accelerator)
            if not lacking:
                raise
        host, accelerator = devices.find(device)
        ops = sorted({node.op for node in lowered.graph.nodes if node.outputs[0] in lacking})
        why = next(iter(lacking.values()))
        self.remarks.append(f"{', '.join(ops)}: on the CPU, because the accelerator cannot run it ({why})")
        return Session(lowered.graph, lowered.arrays, host, accelerator, places, self.products, lacking)

    def ops(self, steps: int) -> list[Span]:
        """Kernels, which may do the work of several layers: those whose parameters they touch are named."""
        assert isinstance(self.session, Session)
        spans = []
        for number in range(steps):
            start = now_ns()
            kernels = list(self.session.trace())
            step = Step((start, now_ns()))
            ops = [Span(begun, done, "op", name, number, phase, layer) for begun, done, name, phase, layer in kernels]
            spans += spans_of(number, step, ops)
        return spans

    def memory(self) -> tuple[MemoryParts, list[Span]]:
        """On a GPU, whose memory is not the process's, with what the arrays of a step take of it, which they keep."""
        parts, spans = super().memory()
        assert isinstance(self.session, Session)
        if devices.is_cpu(self.session.device):
            return parts, spans
        from tinygrad.helpers import GlobalCounters

        return replace(parts, device_peak=GlobalCounters.mem_used_per_device[self.session.device]), spans


ENGINE = Tinygrad
