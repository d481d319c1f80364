"""ONNX Runtime's training build: gradients by its own builder, and the whole step as one graph.

Its optimizers have no momentum, so the update is written into the graph. A step reads the state from one set of
arrays and writes the next into another; then they change places.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ergometer.core.engine import LEARNING_RATE, MOMENTUM, Step
from ergometer.core.errors import UnavailableError
from ergometer.core.graph import VELOCITY, Graph, Lowered
from ergometer.core.span import Span
from ergometer.engines._onnx import Owners, model_of
from ergometer.engines._phases import spans_of
from ergometer.engines._portable import Portable

_FILE = "step.onnx"
_NEXT, _CHANGE = "/next", "/change"
_KERNEL = "_kernel_time"
_ADDED = re.compile(r"^fused |(_BatchNormInternal|_nchwc|_token_\d+)*$")  # to the name of a node


class Ort(Portable):
    name = "ort"
    title = "ONNX Runtime training"
    extra = "ort"
    package = "onnxruntime"
    distribution = "onnxruntime-training"
    excludes = ("onnxruntime",)
    oldest = (1, 19)
    before = (1, 20)
    untraced = ""

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path) -> None:
        import onnx

        model = model_of(graph, arrays, training_norm=True)
        if graph.parameters:
            _refuse_frozen(graph)
            model = _with_update(_with_gradients(model, graph), graph)
        onnx.save(model, folder / _FILE)
        _load(folder / _FILE)

    def open(self, lowered: Lowered, device: str, threads: int) -> "_Session":
        return _Session(lowered, threads)

    def ops(self, steps: int) -> list[Span]:
        """A session is traced from its start, so it is another one that starts anew from the same state."""
        held: Any = self.session
        with TemporaryDirectory() as folder:
            self.session = traced = _Session(self.lowered, self.threads(), profile=f"{folder}/ops")
            try:
                traced.feed(held.batch)
                self.step()
                done = [self.step() for _ in range(steps)]
            finally:
                self.session = held
            events = json.loads(Path(traced.session.end_profiling()).read_text())
        return _spans(self.graph, done, events)


class _Session:
    def __init__(self, lowered: Lowered, threads: int, profile: str = ""):
        import onnxruntime

        self.ort, self.graph = onnxruntime, lowered.graph
        self.session = _load(lowered.folder / _FILE, threads, profile)
        self.now = _start(lowered)
        self.then = {name: np.empty_like(array) for name, array in self.now.items()}
        self.last: Any = np.empty(self.graph.values[self.graph.outputs[0]].shape, np.float32)
        self.bindings = [self._binding(self.now, self.then), self._binding(self.then, self.now)]

    def _binding(self, now: dict[str, Any], then: dict[str, Any]) -> Any:
        binding = self.session.io_binding()
        for name in now:
            binding.bind_ortvalue_input(name, self._shared(now[name]))
            binding.bind_ortvalue_output(name + _NEXT, self._shared(then[name]))
        binding.bind_ortvalue_output(self.graph.outputs[0], self._shared(self.last))
        return binding

    def _shared(self, array: Any) -> Any:
        return self.ort.OrtValue.ortvalue_from_numpy(array)

    def feed(self, batch: dict[str, Any]) -> None:
        self.batch = {name: batch[name] for name in self.graph.inputs}
        self._bind(self.batch)

    def _bind(self, given: dict[str, Any]) -> None:
        for name, array in given.items():
            held = self._shared(np.ascontiguousarray(array))
            for binding in self.bindings:
                binding.bind_ortvalue_input(name, held)

    def step(self, masks: dict[str, Any]) -> None:
        self._bind(masks)
        self.session.run_with_iobinding(self.bindings[0])
        self.bindings.reverse()
        self.now, self.then = self.then, self.now

    def result(self) -> Any:
        return self.last.copy()

    def state(self) -> Iterator[tuple[str, Any]]:
        yield from self.now.items()


def _load(path: Path, threads: int = 1, profile: str = "") -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    if profile:
        options.enable_profiling, options.profile_file_prefix = True, profile
    try:
        return onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UnavailableError(f"ort cannot run this network: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _refuse_frozen(graph: Graph) -> None:
    for node in graph.nodes:
        if node.op == "batch_norm" and not node.attributes["training"]:
            raise UnavailableError(f"ort trains every batch_norm, but that of layer {node.layer!r} is frozen.")


def _start(lowered: Lowered) -> dict[str, Any]:
    graph = lowered.graph
    state = {name: np.array(lowered.arrays[name], np.float32) for name in (*graph.parameters, *graph.updates)}
    return state | {VELOCITY + name: np.zeros_like(state[name]) for name in graph.parameters}


def _with_gradients(model: Any, graph: Graph) -> Any:
    """The model with a NAME_grad for every parameter. Parameters and buffers become inputs of it."""
    import onnx
    import onnxruntime
    from onnxruntime.capi._pybind_state import GradientGraphBuilder, get_optimized_model

    _adapt(model.graph)
    _free(model.graph, {*graph.parameters, *graph.updates})
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    loss, trained = graph.outputs[0], set(graph.parameters)
    try:
        prepared = get_optimized_model(model.SerializeToString(), trained, options)
        builder = GradientGraphBuilder(prepared, {loss}, trained, loss, options)
        builder.build()
    except RuntimeError as error:
        raise UnavailableError(f"ort makes no gradients of this network: {_first_line(error)}") from error
    return onnx.load_from_string(builder.get_model())


def _adapt(made: Any) -> None:
    """Outputs that its gradients are made from, and another way to the unbiased running variance.

    ONNX Runtime writes the new variance over the old one, while the correction still reads the old one.
    So it is corrected before and after: k ((1 - m) old / k + m b), with k = n / (n - 1).
    """
    from onnx import helper

    nodes, replaced = [], set()
    for node in made.node:
        if node.op_type == "SoftmaxCrossEntropyLoss":
            node.output.append(f"{node.output[0]}/log_prob")
        if node.op_type == "LayerNormalization":
            node.output.extend([f"{node.output[0]}/mean", f"{node.output[0]}/inverse"])
        if node.op_type == "BatchNormalization" and len(node.output) == 3:
            new = node.output[2].removesuffix("/biased")
            factor, small = f"{new}/grown/factor", f"{new}/small"
            nodes.append(helper.make_node("Div", [node.input[4], factor], [small], name=small))
            node.input[4] = small
            nodes += [node, helper.make_node("Mul", [node.output[2], factor], [new], name=new)]
            replaced |= {f"{new}/grown", f"{new}/excess", new}
        elif node.name not in replaced:
            nodes.append(node)
    del made.node[:]
    made.node.extend(nodes)


def _free(made: Any, names: set[str]) -> None:
    """Let these initializers be inputs."""
    from onnx import helper

    freed = [item for item in made.initializer if item.name in names]
    kept = [item for item in made.initializer if item.name not in names]
    made.input.extend(helper.make_tensor_value_info(item.name, item.data_type, item.dims) for item in freed)
    del made.initializer[:]
    made.initializer.extend(kept)


def _with_update(model: Any, graph: Graph) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    made, nodes = model.graph, model.graph.node
    for name, number in (("/momentum", MOMENTUM), ("/rate", LEARNING_RATE)):
        made.initializer.append(numpy_helper.from_array(np.array(number, np.float32), name))
    del made.output[1:]

    def info(name: str, like: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, graph.values[like].shape)

    def add(kind: str, inputs: Sequence[str], out: str) -> str:
        # Mul by a scalar takes 20 ns an element where the last sides are 1, as in kernels of size 1. Scale does not.
        nodes.append(helper.make_node(kind, inputs, [out], name=out, domain="com.microsoft" if kind == "Scale" else ""))
        return out

    for name in graph.parameters:
        velocity = VELOCITY + name
        made.input.append(info(velocity, name))
        kept = add("Scale", [velocity, "/momentum"], f"{velocity}/kept")
        made.output.append(info(add("Add", [kept, f"{name}_grad"], velocity + _NEXT), name))
        change = add("Scale", [velocity + _NEXT, "/rate"], name + _CHANGE)
        made.output.append(info(add("Sub", [name, change], name + _NEXT), name))
    for name, source in graph.updates.items():
        made.output.append(info(add("Identity", [source], name + _NEXT), name))
    return model


def _spans(graph: Graph, steps: Sequence[Step], events: Sequence[dict[str, Any]]) -> list[Span]:
    """The clock of the trace is its own, in us: that a run begins in its step tells what it is on ours."""
    runs = [event for event in events if event["name"] == "model_run"][-len(steps) :]
    offset = max(step.marks[0] - 1000 * run["ts"] for step, run in zip(steps, runs, strict=True))
    kernels = [event for event in events if event["name"].endswith(_KERNEL)]
    owners, spans = Owners(graph), []
    for number, (step, run) in enumerate(zip(steps, runs, strict=True)):
        ops = []
        for event in kernels:
            if run["ts"] <= event["ts"] < run["ts"] + run["dur"]:
                start, kind = offset + 1000 * event["ts"], event["args"]["op_name"]
                phase, layer = _origin(event["name"].removesuffix(_KERNEL), kind, owners, bool(graph.parameters))
                ops.append(Span(start, start + 1000 * event["dur"], "op", kind, number, phase, layer))
        spans += spans_of(number, step, ops)
    return spans


def _origin(name: str, kind: str, owners: Owners, training: bool) -> tuple[str, str]:
    """The phase and the layer of a kernel, from the name of its node."""
    if name.startswith(VELOCITY) or name.endswith((_CHANGE, _NEXT)):
        return "optimizer", ""
    source, backward, _ = name.partition("_Grad/")
    weighted = not backward and kind in ("Conv", "FusedConv", "FusedGemm", "FusedMatMul")
    layer = owners.layer([_ADDED.sub("", source)], weighted=weighted)
    return ("backward" if backward else "forward"), layer or ("(loss)" if training else "")


ENGINE = Ort
