"""tinygrad: the graph said in its tensors, differentiated by it, and compiled into one step."""

import ctypes
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ergometer.core.clock import now_ns
from ergometer.core.dataset import Environment
from ergometer.core.graph import Graph, Lowered
from ergometer.core.model import Model
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.engines._portable import Portable
from ergometer.engines.tinygrad._session import Session

# Which products an accelerator gets, of the forward pass, of the input gradient and of the filter gradient.
_PLACES = {
    "both": ("forward", "input", "filter"),
    "forward": ("forward",),
    "forward+input": ("forward", "input"),
    "forward+filter": ("forward", "filter"),
    "none": (),
}
_NAMES = {"cpu": "CPU", "opencl": "CL", "cuda": "CUDA"}


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
    options: ClassVar[dict[str, tuple[str, ...]]] = {"accelerate": tuple(_PLACES)}

    def probe(self, device: str) -> Probe:
        found = super().probe(device)
        return _NEEDS[device](found) if found.ok else found

    def bring(self) -> None:
        _set_environment()
        super().bring()

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path, accelerate: str = "") -> None:
        """Nothing: the kernels depend on the device, which compiles them (and keeps them in tinygrad's own cache)."""

    def load(self, spec: Spec, model: Model, batch: Sequence[Any], environment: Environment | None = None) -> None:
        self.accelerate = spec.options.get("accelerate", "both")
        super().load(spec, model, batch, environment)

    def open(self, lowered: Lowered, device: str, threads: int) -> Session:
        # Its CPU device runs the parts of a kernel one after the other; OpenCL on a CPU has threads.
        self._threads = threads if device == "opencl" else 1
        os.environ |= dict.fromkeys(("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"), str(self._threads))
        _set_environment()
        return Session(lowered.graph, lowered.arrays, _NAMES["cpu"], _NAMES[device], _PLACES[self.accelerate])

    def ops(self, steps: int) -> list[Span]:
        """Kernels, which may do the work of several layers: those whose parameters they touch are named."""
        assert isinstance(self.session, Session)
        (phase,) = self.phases
        spans = []
        for number in range(steps):
            start = now_ns()
            kernels = list(self.session.trace())
            end = now_ns()
            spans += [Span(start, end, "step", "traced", number), Span(start, end, "phase", phase, number, phase)]
            spans += [Span(begun, done, "op", name, number, phase, layer) for begun, done, name, layer in kernels]
        return spans


def _set_environment() -> None:
    """What tinygrad reads when it is imported: compile in this process, and do not cut kernels into parts."""
    os.environ |= {"PARALLEL": "0", "THREADS": "0", "CC": _clang()}


def _clang() -> str:
    chosen = os.environ.get("CC", "")
    return chosen if "clang" in chosen else "clang"


def _needs_clang(found: Probe) -> Probe:
    if shutil.which(_clang()):
        return found
    return Probe(False, "tinygrad compiles with clang, which is not there", "apt install clang")


def _needs_opencl(found: Probe) -> Probe:
    count = ctypes.c_uint32()
    library = _library("libOpenCL.so.1", "libOpenCL.so")
    if library is None or library.clGetPlatformIDs(0, None, ctypes.byref(count)) or not count.value:
        remedy = "install the driver of the GPU, or for the CPU: apt install ocl-icd-libopencl1 pocl-opencl-icd"
        return Probe(False, "there is no OpenCL platform", remedy)
    return found


def _needs_cuda(found: Probe) -> Probe:
    count = ctypes.c_int32()
    library = _library("libcuda.so.1")
    if library is None or library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        return Probe(False, "there is no NVIDIA GPU with its driver", "install the NVIDIA driver")
    return found


_NEEDS = {"cpu": _needs_clang, "opencl": _needs_opencl, "cuda": _needs_cuda}


def _library(*names: str) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


ENGINE = Tinygrad
