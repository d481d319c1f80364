"""MNN: a static graph that trains itself.

The forward pass is written with MNN's expressions and differentiated by MNN. The file that is saved holds the
whole step; its last operations overwrite the parameters, velocities and running statistics where they lie.
"""

import ctypes
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.core.clock import now_ns
from ergometer.core.graph import VELOCITY, Graph, Lowered
from ergometer.core.span import Span
from ergometer.engines._portable import Portable, draw_masks
from ergometer.engines.mnn._names import BACKWARD, UPDATE, stored

_FILE = "graph.mnn"


class Mnn(Portable):
    name = "mnn"
    title = "MNN, static training graph"
    extra = "mnn"
    package = "MNN"
    distribution = "MNN"
    oldest = (3, 6)
    untraced = ""

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path) -> None:
        from ergometer.engines.mnn._emit import Emitter

        emitter = Emitter(graph, arrays)
        emitter.emit()
        emitter.save(folder / _FILE)

    def open(self, lowered: Lowered, device: str, threads: int) -> "MnnSession":
        return MnnSession(lowered.graph, lowered.folder / _FILE, threads)

    def ops(self, steps: int) -> list[Span]:
        assert isinstance(self.session, MnnSession)
        return [
            span for number in range(steps) for span in self.session.trace(draw_masks(self.graph, self.random), number)
        ]


class MnnSession:
    def __init__(self, graph: Graph, path: Path, threads: int) -> None:
        import MNN

        self.graph = graph
        kept = [*graph.outputs, *graph.updates]
        kept += [prefix + name for name in graph.parameters for prefix in ("", VELOCITY)]
        self.net = MNN.Interpreter(str(path))
        self.session = self.net.createSession(
            {
                "backend": "CPU",
                "numThread": threads,
                "precision": "high",
                "saveTensors": tuple(stored(name) for name in kept),
            }
        )
        self.outputs = {name: _view(self.net.getSessionOutput(self.session, stored(name))) for name in kept}
        self.inputs = {}
        for name in (*graph.inputs, *graph.masks):
            kind = ctypes.c_int32 if graph.values[name].dtype == "int64" else ctypes.c_float
            self.inputs[name] = _view(self.net.getSessionInput(self.session, name), kind)
        self.batch: dict[str, Any] = {}

    def feed(self, batch: dict[str, Any]) -> None:
        self.batch = batch

    def step(self, masks: dict[str, Any]) -> None:
        self._fill(masks)
        _check(self.net.runSession(self.session))

    def _fill(self, masks: dict[str, Any]) -> None:
        # MNN reuses the memory of inputs within a step.
        for name, array in (self.batch | masks).items():
            self.inputs[name][...] = array

    def result(self) -> Any:
        return self.outputs[self.graph.outputs[0]].copy()

    def state(self) -> Iterator[tuple[str, Any]]:
        for name in (*self.graph.parameters, *self.graph.updates):
            yield name, self.outputs[name]
        for name in self.graph.parameters:
            yield VELOCITY + name, self.outputs[VELOCITY + name]

    def trace(self, masks: dict[str, Any], number: int) -> list[Span]:
        """The step, operation by operation."""
        done: list[tuple[int, int, str, str]] = []
        begun = 0

        def before(tensors: Any, op: Any) -> bool:
            nonlocal begun
            begun = now_ns()
            return True

        def after(tensors: Any, op: Any) -> bool:
            done.append((begun, now_ns(), op.getType(), op.getName()))
            return True

        start = now_ns()
        self._fill(masks)
        _check(self.net.runSessionWithCallBackInfo(self.session, before, after))
        whole = Span(start, now_ns(), "step", "traced", number)
        return [whole, *_located(done, number)]


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"MNN stopped with code {code}")


def _located(done: Sequence[tuple[int, int, str, str]], step: int) -> list[Span]:
    """Spans of operations. One without a layer in its name belongs to the next that has one."""
    spans: list[Span] = []
    layer = phase = ""
    for start, end, kind, name in reversed(done):
        if name.startswith(UPDATE):
            layer, phase = name.removeprefix(UPDATE).removeprefix(VELOCITY).rpartition(".")[0], "optimizer"
        elif "@" in name:
            layer = name.rpartition("@")[0].removeprefix(BACKWARD) or "(loss)"
            phase = "backward" if name.startswith(BACKWARD) else "forward"
        spans.append(Span(start, end, "op", kind, step, phase, layer))
    return spans[::-1]


def _view(tensor: Any, kind: Any = ctypes.c_float) -> Any:
    """A tensor's own memory as an array."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    shape = tensor.getShape()
    address = pointer(tensor.getHost(), None)
    return np.ctypeslib.as_array((kind * math.prod(shape)).from_address(address)).reshape(shape)


ENGINE = Mnn

__all__ = ["ENGINE"]
