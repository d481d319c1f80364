"""OpenVINO on the CPU."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from ergometer.core.clock import now_ns
from ergometer.core.graph import Graph, Lowered
from ergometer.core.span import Span
from ergometer.engines._fold import fold
from ergometer.engines._int8 import write_int8
from ergometer.engines._onnx import Owners, model_of
from ergometer.engines._portable import Portable

_FILE = "model.onnx"


class OpenVino(Portable):
    name = "openvino"
    title = "OpenVINO, inference"
    extra = "openvino"
    package = "openvino"
    distribution = "openvino"
    oldest = (2025, 0)
    modes = ("infer",)
    options: ClassVar = {"precision": ("float32", "int8")}
    untraced = ""

    def build(self, graph: Graph, arrays: dict[str, Any], folder: Path, *, precision: str = "float32") -> None:
        if precision == "int8":
            write_int8(graph, arrays, folder / _FILE)
            return
        # OpenVINO folds batch norm as well, but then forgets which layer a convolution was.
        (folder / _FILE).write_bytes(model_of(*fold(graph, arrays)).SerializeToString())

    def open(self, lowered: Lowered, device: str, threads: int) -> "OpenVinoSession":
        return OpenVinoSession(lowered, threads)

    def ops(self, steps: int) -> list[Span]:
        assert isinstance(self.session, OpenVinoSession)
        session = OpenVinoSession(self.lowered, self.threads(), profile=True)
        session.feed(self.session.batch)
        session.step({})
        warm = _totals(session, 1)
        marks = []
        for _ in range(steps):
            start = now_ns()
            session.step({})
            marks.append((start, now_ns()))
        totals = {name: total - warm[name] for name, total in _totals(session, steps + 1).items()}
        return _spans(totals, marks, _kernels(session.network, Owners(self.graph)))


class OpenVinoSession:
    def __init__(self, lowered: Lowered, threads: int, profile: bool = False):
        import openvino

        options = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": "f32",  # without it, half precision wherever the processor has it
            "PERF_COUNT": profile,
        }
        self.network = openvino.Core().compile_model(lowered.folder / _FILE, "CPU", options)
        self.request = self.network.create_infer_request()

    def feed(self, batch: dict[str, Any]) -> None:
        import openvino

        self.batch = batch
        for name, array in batch.items():
            self.request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

    def step(self, masks: dict[str, Any]) -> None:
        self.request.infer(share_outputs=True)

    def result(self) -> Any:
        return self.request.get_output_tensor(0).data

    def state(self) -> Iterator[tuple[str, Any]]:
        return iter(())


def _totals(session: OpenVinoSession, steps: int) -> dict[str, float]:
    """Nanoseconds in each kernel, in their order, over all steps so far: OpenVINO keeps the mean of them."""
    profile = session.request.profiling_info
    return {kernel.node_name: kernel.real_time.total_seconds() * 1e9 * steps for kernel in profile}


def _kernels(network: Any, owners: Owners) -> dict[str, tuple[str, str | None]]:
    """The kind and the layer of each kernel; it knows which nodes of the model were fused into it."""
    kernels = {}
    for kernel in network.get_runtime_model().get_ops():
        facts = kernel.get_rt_info()
        names = facts["originalLayersNames"].astype(str).split(",")
        kind = facts["layerType"].astype(str)
        layer = owners.layer(names, weighted=kind in ("Convolution", "Deconvolution", "FullyConnected", "MatMul"))
        kernels[kernel.friendly_name] = kind, layer
    return kernels


def _spans(
    totals: dict[str, float], marks: list[tuple[int, int]], kernels: dict[str, tuple[str, str | None]]
) -> list[Span]:
    """When a kernel began is not known, nor what it took in a single step: in each step, they are laid one after
    another, and their times are shared out among the steps in proportion to the length of these."""
    whole = sum(end - start for start, end in marks)
    spans = []
    for number, (start, end) in enumerate(marks):
        spans.append(Span(start, end, "step", "traced", number))
        spans.append(Span(start, end, "phase", "forward", number, "forward"))
        layer, at, share = "", float(start), (end - start) / whole
        for name, total in totals.items():
            if total <= 0:
                continue
            kind, owner = kernels.get(name, (name, None))
            layer = layer if owner is None else owner  # a conversion of layout counts to what came before it
            spans.append(Span(int(at), int(at + total * share), "op", kind, number, "forward", layer))
            at += total * share
    return spans


ENGINE = OpenVino
