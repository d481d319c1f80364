"""Which op of which layer ran when, and what it allocated.

Kineto (torch's own tracer) stamps every op. Which module an op belongs to is found once, in a step with
module hooks; the traced steps themselves carry no hooks, because eager PyTorch issues the same ops in the
same order each time. Where it does not (control flow that depends on data), the hooks stay on.
"""

import gc
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.autograd.profiler import profile

from ergometer.core.clock import realtime_offset_ns
from ergometer.core.engine import MemoryParts, Step
from ergometer.core.span import Span

if TYPE_CHECKING:
    from ergometer.engines.torch.engine import Torch

_NODE = "autograd::engine::evaluate_function: "
_LOSS = "(loss)"
_COMPANION = "(companion)"
_ENVIRONMENT = "(environment)"


@dataclass(slots=True)
class _Op:
    """An outermost op: an aten function, or a node of the backward graph."""

    name: str
    start: int
    end: int
    sequence: int
    correlations: set[int]
    layer: str = ""
    phase: str = ""


class _ModuleClock:
    """Intervals during which each module ran its forward, on the real-time clock that kineto uses."""

    def __init__(self, engine: "Torch"):
        self.intervals: list[tuple[int, int, str]] = []
        self._stack: list[tuple[str, int]] = []
        self._handles = []
        named = list(engine.module.named_modules())
        if engine.companion is not None:
            named += engine.companion.named_modules(prefix=_COMPANION)
        for name, child in named:
            self._handles.append(child.register_forward_pre_hook(self._enter(name)))
            self._handles.append(child.register_forward_hook(self._leave))

    def _enter(self, name: str) -> Any:
        def hook(module: torch.nn.Module, args: Any) -> None:
            self._stack.append((name, time.time_ns()))

        return hook

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        name, start = self._stack.pop()
        self.intervals.append((start, time.time_ns(), name))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def layer_at(self, stamps: list[int]) -> list[str]:
        """The innermost module that was running at each stamp ('' is the model itself, _LOSS outside of it)."""
        edges = sorted(
            [(start, 1, end, name) for start, end, name in self.intervals]
            + [(end, 0, start, name) for start, end, name in self.intervals]
        )
        times, names, stack = [], [], [_LOSS]
        for stamp, opens, _, name in edges:
            if opens:
                stack.append(name)
            else:
                stack.pop()
            times.append(stamp)
            names.append(stack[-1])
        return [names[at - 1] if (at := bisect_right(times, stamp)) else _LOSS for stamp in stamps]


@contextmanager
def _profiler(engine: "Torch", *, memory: bool = False) -> Iterator[Any]:
    """Kineto over the body, with no garbage collection in it: the garbage is the tracer's own."""
    use_device = "cuda" if engine.device.type == "cuda" else None
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        with profile(use_cpu=True, use_kineto=True, use_device=use_device, profile_memory=memory) as tracer:
            yield tracer
    finally:
        if collecting:
            gc.enable()


def _cpu_events(tracer: Any) -> list[Any]:
    return [e for e in tracer.kineto_results.events() if e.device_type() == DeviceType.CPU]


def _outermost(events: list[Any]) -> list[_Op]:
    """Ops that lie in no other op of their thread, in order of start."""
    ops: list[_Op] = []
    current: dict[int, _Op] = {}
    # An op's name has a namespace; annotations, calls of the CUDA runtime and the tracer's own work have none.
    spans = [(e.start_ns(), -e.duration_ns(), e) for e in events if "::" in e.name() and e.duration_ns() > 0]
    for start, negative, event in sorted(spans, key=lambda item: item[:2]):
        thread = event.start_thread_id()
        top = current.get(thread)
        if top is not None and start < top.end:
            top.correlations.add(event.correlation_id())
            continue
        name = event.name().removeprefix(_NODE).removeprefix("torch::autograd::").removeprefix("aten::")
        top = _Op(name, start, start - negative, event.sequence_nr(), {event.correlation_id()})
        current[thread] = top
        ops.append(top)
    return ops


def _sequences(events: list[Any], ops: list[_Op]) -> dict[int, int]:
    """Sequence number of a graph node -> index of the forward op that recorded it.

    An op that records no node carries the number of the next that does, so the last one with a number made it.
    """
    starts = [op.start for op in ops]
    found: dict[int, int] = {}
    for event in events:
        if event.sequence_nr() >= 0 and event.fwd_thread_id() == 0:
            at = bisect_right(starts, event.start_ns()) - 1
            if at >= 0 and event.start_ns() < ops[at].end and ops[at].phase == "forward":
                found[event.sequence_nr()] = max(at, found.get(event.sequence_nr(), -1))
    return found


def _set_phases(ops: list[_Op], steps: list[Step], phases: tuple[str, ...], offset: int) -> list[int]:
    """Give each op its phase; return the step that each belongs to (-1: none)."""
    marks = [mark - offset for step in steps for mark in step.issued or step.marks]
    width = len(phases) + 1
    owners = []
    for op in ops:
        step, phase = divmod(bisect_right(marks, op.start) - 1, width)
        inside = step >= 0 and phase < len(phases)
        op.phase = phases[phase] if inside else ""
        owners.append(step if inside else -1)
    return owners


def _map_layers(engine: "Torch") -> list[tuple[str, str]]:
    """(op, layer) of every forward op of a step, in order; found once for a loaded model."""
    if engine.layers is not None:
        return engine.layers
    clock = _ModuleClock(engine)
    try:
        with _profiler(engine) as tracer:
            step = engine.step()
    finally:
        clock.remove()
    ops = _outermost(_cpu_events(tracer))
    _set_phases(ops, [step], engine.phases, realtime_offset_ns())
    forward = [op for op in ops if op.phase == "forward"]
    layers = clock.layer_at([op.start for op in forward])
    engine.layers = list(zip([op.name for op in forward], layers, strict=True))
    return engine.layers


def _assign_layers(ops: list[_Op], events: list[Any], layers: list[str]) -> None:
    """Forward ops take the given layers; backward ops the layer of the op whose graph node they evaluate."""
    forward = [op for op in ops if op.phase == "forward"]
    for op, layer in zip(forward, layers, strict=True):
        op.layer = layer
    by_sequence = _sequences(events, ops)
    previous = _LOSS
    for op in ops:
        if op.phase != "backward":
            previous = _LOSS
            op.layer = op.layer or (_ENVIRONMENT if op.phase == "environment" else "")
            continue
        if op.sequence in by_sequence:
            op.layer = previous = ops[by_sequence[op.sequence]].layer
        else:
            # AccumulateGrad has no number of its own; the engine runs it right after the node that feeds it.
            op.layer = previous


def _device_intervals(tracer: Any) -> dict[int, tuple[int, int]]:
    """Correlation number of an op -> when its kernels ran on the device."""
    found: dict[int, tuple[int, int]] = {}
    for event in tracer.kineto_results.events():
        if event.device_type() == DeviceType.CUDA and event.duration_ns() > 0:
            start, end = event.start_ns(), event.start_ns() + event.duration_ns()
            known = found.get(event.linked_correlation_id(), (start, end))
            found[event.linked_correlation_id()] = (min(start, known[0]), max(end, known[1]))
    return found


def trace_ops(engine: "Torch", steps: int) -> list[Span]:
    """Spans of kind step, phase and op for that many traced steps."""
    mapped = _map_layers(engine)
    with _profiler(engine) as tracer:
        if engine.device.type == "cuda":
            engine.step()  # the device's tracer starts up in the first step that it sees
        before = realtime_offset_ns()
        done = [engine.step() for _ in range(steps)]
        after = realtime_offset_ns()
    offset = (before + after) // 2
    events = _cpu_events(tracer)
    ops = _outermost(events)
    owners = _set_phases(ops, done, engine.phases, offset)
    names = [op.name for op in ops if op.phase == "forward"]
    if names != [name for name, _ in mapped] * steps:
        return _trace_with_hooks(engine, steps)
    _assign_layers(ops, events, [layer for _, layer in mapped] * steps)
    return _spans(engine, ops, owners, done, offset, _device_intervals(tracer))


def _trace_with_hooks(engine: "Torch", steps: int) -> list[Span]:
    clock = _ModuleClock(engine)
    try:
        with _profiler(engine) as tracer:
            done = [engine.step() for _ in range(steps)]
    finally:
        clock.remove()
    offset = realtime_offset_ns()
    events = _cpu_events(tracer)
    ops = _outermost(events)
    owners = _set_phases(ops, done, engine.phases, offset)
    _assign_layers(ops, events, clock.layer_at([op.start for op in ops if op.phase == "forward"]))
    return _spans(engine, ops, owners, done, offset, _device_intervals(tracer))


def _spans(
    engine: "Torch",
    ops: list[_Op],
    owners: list[int],
    steps: list[Step],
    offset: int,
    device: dict[int, tuple[int, int]],
) -> list[Span]:
    spans = []
    for number, step in enumerate(steps):
        spans.append(Span(step.marks[0], step.marks[-1], "step", "traced", number))
        for phase, start, end in zip(engine.phases, step.marks, step.marks[1:], strict=False):
            spans.append(Span(start, end, "phase", phase, number, phase))
    on_device = engine.device.type == "cuda"
    for op, owner in zip(ops, owners, strict=True):
        if owner < 0:
            continue
        start, end = op.start, op.end
        if on_device:
            ran = [device[number] for number in op.correlations if number in device]
            if not ran:
                continue  # it launched no kernel, so it cost the device nothing
            start, end = min(interval[0] for interval in ran), max(interval[1] for interval in ran)
        spans.append(Span(start + offset, end + offset, "op", op.name, owner, op.phase, op.layer))
    return spans


def trace_memory(engine: "Torch") -> tuple[MemoryParts, list[Span]]:
    """Parts of memory, and one step's op spans with what each allocated."""
    if engine.device.type == "cuda":
        return _cuda_memory(engine), []
    mapped = _map_layers(engine)
    with _profiler(engine, memory=True) as tracer:
        done = [engine.step()]
    offset = realtime_offset_ns()
    events = _cpu_events(tracer)
    allocations = sorted(
        ((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"), key=lambda item: item[0]
    )
    state = engine.state_bytes()
    parts = MemoryParts(**state, activations=_activations(engine, allocations, done[0], offset))

    ops = _outermost([e for e in events if e.name() != "[memory]"])
    owners = _set_phases(ops, done, engine.phases, offset)
    forward = [op.name for op in ops if op.phase == "forward"]
    same = forward == [name for name, _ in mapped]
    _assign_layers(ops, events, [layer for _, layer in mapped] if same else [""] * len(forward))
    stamps = [stamp for stamp, _ in allocations]
    spans = []
    for op, owner in zip(ops, owners, strict=True):
        if owner < 0:
            continue
        inside = [size for _, size in allocations[bisect_right(stamps, op.start - 1) : bisect_right(stamps, op.end)]]
        spans.append(
            Span(
                op.start + offset,
                op.end + offset,
                "memory",
                op.name,
                0,
                op.phase,
                op.layer,
                sum(size for size in inside if size > 0),
            )
        )
    return parts, spans


def _activations(engine: "Torch", allocations: list[tuple[int, int]], step: Step, offset: int) -> int:
    """Bytes that a forward pass leaves for its backward pass; in inference, the most it held at once."""
    most = 0
    for phase, start, end in zip(engine.phases, step.marks, step.marks[1:], strict=False):
        if phase != "forward":
            continue
        live = highest = 0
        for stamp, size in allocations:
            if start - offset <= stamp <= end - offset:
                live += size
                highest = max(highest, live)
        most = max(most, live if engine.training else highest)
    return most


def _cuda_memory(engine: "Torch") -> MemoryParts:
    engine.sync()
    torch.cuda.reset_peak_memory_stats()
    activations = 0
    for number in range(len(engine.passes) if engine.training else 1):
        before = torch.cuda.memory_allocated()
        result = engine.forward(number)
        engine.sync()
        held = torch.cuda.memory_allocated() if engine.training else torch.cuda.max_memory_allocated()
        activations = max(activations, held - before)
        if engine.training:
            engine.backward(result, number)
            engine.update(number)
            engine.sync()
    return MemoryParts(**engine.state_bytes(), activations=activations, device_peak=torch.cuda.max_memory_reserved())
