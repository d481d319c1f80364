"""tinygrad: the graph said in its tensors, differentiated by it, and compiled into one step."""

import ctypes
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.core.clock import now_ns
from ergometer.core.engine import LEARNING_RATE, MOMENTUM
from ergometer.core.graph import VELOCITY, Graph, Lowered, Node
from ergometer.core.probe import Probe
from ergometer.core.span import Span
from ergometer.engines._portable import Portable

# Their inputs, or the gradients of their outputs, are kept in memory. The rest is computed again wherever it is used,
# which takes long in the inner loops of a convolution; and the gradient of max_pool compares for equality.
_KEPT = ("conv", "conv_transpose", "linear", "matmul", "max_pool")
_KEPT_GRADIENTS = ("conv", "conv_transpose")
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

    def probe(self, device: str) -> Probe:
        found = super().probe(device)
        return _NEEDS[device](found) if found.ok else found

    def bring(self) -> None:
        _set_environment()
        super().bring()

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path) -> None:
        """Nothing: the kernels depend on the device, which compiles them (and keeps them in tinygrad's own cache)."""

    def open(self, lowered: Lowered, device: str, threads: int) -> "_Session":
        # Its CPU device runs the parts of a kernel one after the other; OpenCL on a CPU has threads.
        self._threads = threads if device == "opencl" else 1
        os.environ |= dict.fromkeys(("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"), str(self._threads))
        _set_environment()
        return _Session(lowered.graph, lowered.arrays, _NAMES[device])

    def ops(self, steps: int) -> list[Span]:
        """Kernels, which may do the work of several layers: those whose parameters they touch are named."""
        assert isinstance(self.session, _Session)
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


class _Session:
    def __init__(self, graph: Graph, arrays: Any, device: str):
        from tinygrad.engine.jit import jit_lower
        from tinygrad.engine.realize import get_runtime, link_linear
        from tinygrad.helpers import DEV
        from tinygrad.uop.ops import buffers

        DEV.value = device  # otherwise it opens every device that there is, to find a default
        self.graph, self.device = graph, device
        kept = (*graph.parameters, *graph.constants, *graph.buffers)
        self.values = {name: self._tensor(arrays[name]) for name in kept}
        self.velocities = {name: self._tensor(np.zeros_like(arrays[name])) for name in graph.parameters}
        fed = {name: graph.values[name] for name in (*graph.inputs, *graph.masks)}
        self.fed = {name: self._tensor(np.zeros(value.shape, value.dtype)) for name, value in fed.items()}
        linear, gradients = self._train() if graph.parameters else self._infer()
        held = [*self.values.items(), *self.velocities.items(), *gradients.items()]
        owners = {tensor.uop.base: name.rpartition(".")[0] for name, tensor in held}
        self.layers = [_layers(call, owners) for call in linear.src]
        self.compiled = link_linear(jit_lower(linear, {self.output.uop.base, *buffers}, []))
        for call in _kernels(self.compiled):
            get_runtime(device, call.src[0])  # OpenCL compiles when a kernel is first asked for

    def feed(self, batch: dict[str, Any]) -> None:
        from tinygrad.device import Buffer

        for name, array in batch.items():
            target = self.fed[name].uop.base.buffer
            target.copy_from(Buffer("NPY", target.size, target.dtype, opaque=_plain(array)))

    def step(self, masks: dict[str, Any]) -> None:
        from tinygrad import Device
        from tinygrad.engine.realize import run_linear

        self.feed(masks)
        run_linear(self.compiled, jit=True)
        Device[self.device].synchronize()

    def result(self) -> Any:
        return self.output.numpy()

    def state(self) -> Iterator[tuple[str, Any]]:
        for name in (*self.graph.parameters, *self.graph.updates):
            yield name, self.values[name].numpy()
        for name, velocity in self.velocities.items():
            yield VELOCITY + name, velocity.numpy()

    def _tensor(self, array: Any) -> Any:
        from tinygrad import Tensor

        return Tensor(_plain(array), device=self.device).realize()

    def _run(self) -> dict[str, Any]:
        found, rules = self.values | self.fed, _rules()
        for node in self.graph.nodes:
            given = [found[name] for name in node.inputs]
            if node.op in _KEPT:
                given = [tensor.contiguous() for tensor in given]
            results = rules[node.op](node, *given)
            if node.op in _KEPT_GRADIENTS:
                results = results.contiguous_backward()
            found |= zip(node.outputs, results if isinstance(results, tuple) else (results,), strict=True)
        return found

    def _infer(self) -> tuple[Any, dict[str, Any]]:
        self.output = self._run()[self.graph.outputs[0]].contiguous()
        return self.output.schedule_linear(), {}

    def _train(self) -> tuple[Any, dict[str, Any]]:
        """The kernels of a step, and the gradients that are among their results.

        All gradients come before all updates: tinygrad copies a parameter that others still have to read.
        """
        from tinygrad import Tensor

        found = self._run()
        self.output = found[self.graph.outputs[0]].contiguous()
        parameters = [self.values[name] for name in self.graph.parameters]
        gradients = [gradient.contiguous() for gradient in self.output.gradient(*parameters)]
        running = [self.values[name].assign(found[source]) for name, source in self.graph.updates.items()]
        first = self.output.schedule_linear(*gradients, *running)
        for parameter, velocity, gradient in zip(parameters, self.velocities.values(), gradients, strict=True):
            velocity.assign(MOMENTUM * velocity + gradient)
            parameter.assign(parameter - LEARNING_RATE * velocity)
        then = Tensor.schedule_linear(*parameters, *self.velocities.values())
        return first.replace(src=(*first.src, *then.src)), dict(zip(self.graph.parameters, gradients, strict=True))

    def trace(self) -> Iterator[tuple[int, int, str, str]]:
        """Run a step kernel by kernel: when each began and ended, its name and its layer."""
        from tinygrad.engine.realize import run_linear
        from tinygrad.helpers import GlobalCounters, ansistrip

        for call, layer in zip(_kernels(self.compiled), self.layers, strict=True):
            before = GlobalCounters.time_sum_s
            run_linear(self.compiled.replace(src=(call,)), jit=True, wait=True)
            end = now_ns()
            start = end - int(1e9 * (GlobalCounters.time_sum_s - before))
            yield start, end, ansistrip(call.src[0].arg.name), layer


def _plain(array: Any) -> Any:
    """In the order of its indices; whole numbers in 32 bits."""
    return np.asarray(array, np.int32 if array.dtype == np.int64 else None, order="C")


def _layers(call: Any, owners: dict[Any, str]) -> str:
    return " + ".join(sorted({owners.get(buffer.base, "") for buffer in call.src[1:]} - {""}))


def _kernels(linear: Any) -> Iterator[Any]:
    """Every kernel of a captured step; some devices batch them."""
    for call in linear.src:
        if call.src[0].arg == "graph":
            yield from call.src[0].src[0].src
        else:
            yield call


def _rules() -> dict[str, Callable[..., Any]]:
    from tinygrad import Tensor

    def sides(node: Node) -> tuple[int, ...]:
        top, left, bottom, right = node.attributes["padding"]
        return left, right, top, bottom

    def conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
        a = node.attributes
        return x.conv2d(weight, bias, a["groups"], tuple(a["stride"]), tuple(a["dilation"]), sides(node))

    def conv_transpose(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
        stride, padding, more = (tuple(node.attributes[key]) for key in ("stride", "padding", "output_padding"))
        return x.conv_transpose2d(weight, bias, stride=stride, padding=padding, output_padding=more)

    def batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        a = node.attributes
        if not a["training"]:
            return x.batchnorm(scale, bias, mean, (variance + a["epsilon"]).rsqrt())
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        count, keep = x.numel() // x.shape[1], 1 - a["momentum"]
        now, spread = x.mean(axes), x.var(axes, correction=0)
        y = x.batchnorm(scale, bias, now, (spread + a["epsilon"]).rsqrt())
        unbiased = spread * (count / (count - 1))
        return y, keep * mean + a["momentum"] * now, keep * variance + a["momentum"] * unbiased

    def max_pool(node: Node, x: Any) -> Any:
        return x.max_pool2d(tuple(node.attributes["kernel"]), tuple(node.attributes["stride"]), padding=sides(node))

    def avg_pool(node: Node, x: Any) -> Any:
        a = node.attributes
        counts = a["counts_padding"]
        return x.avg_pool2d(tuple(a["kernel"]), tuple(a["stride"]), padding=sides(node), count_include_pad=counts)

    def pad(node: Node, x: Any) -> Any:
        return x.pad(tuple(zip(node.attributes["before"], node.attributes["after"], strict=True)))

    def cut(node: Node, x: Any) -> Any:
        a = node.attributes
        return x.shrink(tuple((a["start"], a["stop"]) if i == a["axis"] else None for i in range(x.ndim)))

    def pick(_: Node, x: Any, indices: Any) -> Any:
        return x.gather(1, indices.unsqueeze(1)).squeeze(1)

    def unary(name: str) -> Callable[..., Any]:
        return lambda _, x: getattr(x, name)()

    def reduce(name: str) -> Callable[..., Any]:
        return lambda n, x: getattr(x, name)(tuple(n.attributes["axes"]), keepdim=n.attributes["keep"])

    return {
        "conv": conv,
        "conv_transpose": conv_transpose,
        "linear": lambda _, x, weight, bias=None: x.linear(weight.T, bias),
        "matmul": lambda _, a, b: a @ b,
        "batch_norm": batch_norm,
        "layer_norm": lambda n, x, scale, bias: x.layernorm(eps=n.attributes["epsilon"]) * scale + bias,
        "max_pool": max_pool,
        "avg_pool": avg_pool,
        **{name: unary(name) for name in ("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "neg", "erf")},
        **{name: unary(name) for name in ("softmax", "log_softmax")},
        "gelu": lambda _, x: x.gelu("none"),
        "clip": lambda n, x: x.clamp(n.attributes["low"], n.attributes["high"]),
        "leaky_relu": lambda n, x: x.leaky_relu(n.attributes["slope"]),
        "power": lambda n, x: x ** n.attributes["exponent"],
        "add": lambda _, a, b: a + b,
        "sub": lambda _, a, b: a - b,
        "mul": lambda _, a, b: a * b,
        "div": lambda _, a, b: a / b,
        "reshape": lambda n, x: x.reshape(tuple(n.attributes["shape"])),
        "transpose": lambda n, x: x.permute(tuple(n.attributes["axes"])),
        "concat": lambda n, *items: Tensor.cat(*items, dim=n.attributes["axis"]),
        "slice": cut,
        "pad": pad,
        "reduce_mean": reduce("mean"),
        "reduce_sum": reduce("sum"),
        "gather_rows": lambda _, table, indices: table[indices],
        "pick": pick,
        "cross_entropy": lambda n, scores, labels: -pick(n, scores.log_softmax(), labels).mean(),
    }


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
