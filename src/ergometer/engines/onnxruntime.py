"""ONNX Runtime on the CPU."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from ergometer.core.clock import now_ns
from ergometer.core.graph import Graph, Lowered
from ergometer.core.span import Span
from ergometer.engines._int8 import write_int8
from ergometer.engines._onnx import Owners, model_of
from ergometer.engines._portable import Portable

_FILE = "model.onnx"
_ENDING = re.compile(r"(_nchwc|_token_\d+|_(Q|Deq)uantizeLinear)*_kernel_time$")  # what it adds to a node's name


class OnnxRuntime(Portable):
    name = "onnxruntime"
    title = "ONNX Runtime, inference"
    extra = "onnxruntime"
    package = "onnxruntime"
    distribution = "onnxruntime"
    excludes = ("onnxruntime-training",)
    oldest = (1, 20)
    modes = ("infer",)
    options: ClassVar = {"precision": ("float32", "int8")}
    untraced = ""

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path, *, precision: str = "float32") -> None:
        if precision == "int8":
            write_int8(graph, arrays, folder / _FILE)
        else:
            (folder / _FILE).write_bytes(model_of(graph, arrays).SerializeToString())

    def open(self, lowered: Lowered, device: str, threads: int) -> "OnnxSession":
        return OnnxSession(lowered, threads)

    def ops(self, steps: int) -> list[Span]:
        assert isinstance(self.session, OnnxSession)
        with TemporaryDirectory() as folder:
            session = OnnxSession(self.lowered, self.threads(), profile=f"{folder}/ops")
            session.feed(self.session.batch)
            session.step({})
            marks = []
            for _ in range(steps):
                start = now_ns()
                session.step({})
                marks.append((start, now_ns()))
            events = json.loads(Path(session.runtime.end_profiling()).read_text())
        return _spans(events, marks, Owners(self.graph))


class OnnxSession:
    def __init__(self, lowered: Lowered, threads: int, profile: str = ""):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        path, providers = lowered.folder / _FILE, ["CPUExecutionProvider"]
        self.outputs = list(lowered.graph.outputs)
        self.runtime = onnxruntime.InferenceSession(path, options, providers=providers)

    def feed(self, batch: dict[str, Any]) -> None:
        self.batch = batch

    def step(self, masks: dict[str, Any]) -> None:
        (self.scores,) = self.runtime.run(self.outputs, self.batch)

    def result(self) -> Any:
        return self.scores

    def state(self) -> Iterator[tuple[str, Any]]:
        return iter(())


def _spans(events: list[dict[str, Any]], marks: list[tuple[int, int]], owners: Owners) -> list[Span]:
    """The profile has a clock of its own: each run is laid into the middle of the step that it was part of."""
    kernels = [event for event in events if event["cat"] == "Node"]
    runs = [event for event in events if event["name"] == "model_run"][-len(marks) :]
    spans = []
    for number, (run, (start, end)) in enumerate(zip(runs, marks, strict=True)):
        spans.append(Span(start, end, "step", "traced", number))
        spans.append(Span(start, end, "phase", "forward", number, "forward"))
        offset = (start + end) // 2 - 500 * (2 * run["ts"] + run["dur"])
        layer = ""
        for event in kernels:
            if not run["ts"] <= event["ts"] < run["ts"] + run["dur"]:
                continue
            kind = event["args"]["op_name"]
            found = owners.layer(
                [_ENDING.sub("", event["name"])], weighted="Conv" in kind or "Gemm" in kind or "MatMul" in kind
            )
            layer = layer if found is None else found  # a conversion of layout counts to what came before it
            begin = offset + 1000 * event["ts"]
            spans.append(Span(begin, begin + 1000 * event["dur"], "op", kind, number, "forward", layer))
    return spans


ENGINE = OnnxRuntime
