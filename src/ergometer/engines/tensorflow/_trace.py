"""TensorFlow's own trace of a step, as spans."""

import re
from collections.abc import Sequence
from importlib import import_module

from ergometer.core.engine import Step
from ergometer.core.graph import Graph
from ergometer.core.span import Span
from ergometer.engines._onnx import Owners
from ergometer.engines._phases import spans_of

NODE, MARK = "node", "ergometer step"
_NUMBER = re.compile(rf"(?:^|/){NODE}(\d+)/")
_OP = re.compile(r"([^:\s]+):(\w+)")  # the name of an operation and its kind


def events_of(trace: bytes) -> list[tuple[str, int, int]]:
    """What ran: its name, start and end in ns, in order of start."""
    xplane = import_module("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    found = []
    for plane in xplane.XSpace.FromString(trace).planes:
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns + event.offset_ps // 1000
                found.append((plane.event_metadata[event.metadata_id].name, start, start + event.duration_ps // 1000))
    return sorted(found, key=lambda event: event[1])


def spans_in(graph: Graph, steps: Sequence[Step], events: Sequence[tuple[str, int, int]]) -> list[Span]:
    """The clock of the trace is its own: the marks around the steps tell what it is on ours."""
    marks = [start for name, start, _ in events if name == MARK]
    offset = min(step.marks[0] - start for step, start in zip(steps, marks, strict=True))
    ran = [(_OP.fullmatch(name), start + offset, end + offset) for name, start, end in events]
    owners, spans = Owners(graph), []
    for number, step in enumerate(steps):
        ops = [
            Span(start, end, "op", found[2].lstrip("_"), number, *_origin(graph, owners, found[1], found[2]))
            for found, start, end in ran
            if found and step.marks[0] <= start < step.marks[-1]
        ]
        spans += spans_of(number, step, ops)
    return spans


def _origin(graph: Graph, owners: Owners, name: str, kind: str) -> tuple[str, str]:
    """The phase and the layer of an operation of TensorFlow."""
    if name.startswith("optimizer/"):
        return "optimizer", ""
    phase = "backward" if name.startswith(("gradient_tape/", "AddN")) else "forward"
    number = _NUMBER.search(name)
    if not number:
        return phase, ""
    fused = "Fused" in kind and ("Conv" in kind or "MatMul" in kind)  # and named after its last part
    layer = owners.layer(graph.nodes[int(number[1])].outputs, weighted=fused)
    return phase, layer or ("(loss)" if graph.parameters else "")
