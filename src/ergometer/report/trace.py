"""A run as a Chrome trace: stages, steps, phases, layers and ops, with a counter track for every channel.

The format is Google's "Trace Event Format", which Perfetto and chrome://tracing read: complete events (X) on tracks
and counters (C), in microseconds. Everything is on the clock of the run, whose start is 0. Events are written one
by one, so that a trace of any length needs no more memory than the run's own columns.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.analyze.join import growth_rate
from ergometer.core.errors import StoreError
from ergometer.core.record import Record
from ergometer.report.timeline import origin_ns
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable

_RUN, _SENSORS = 1, 2  # process numbers
_KINDS = {"stage": 1, "load": 2, "step": 3, "phase": 4, "window": 5}  # track numbers, by kind of span
_LAYERS, _OPS = 10, 11
_NAMES = {1: "stages", 2: "batches", 3: "steps", 4: "phases", 5: "windows", _LAYERS: "layers"}
_RATES = {"J": "W", "s": "share"}  # what a counter of these is per second
_GAP_NS = 100_000  # calls of a layer that follow one another this closely are one stay in it


def opened(record: Record) -> tuple[SpanTable, Samples | None, str]:
    """The spans and samples of a run, and why there are no samples if so; StoreError without spans."""
    folder = Path(record.directory)
    spans = SpanTable.load(folder / "spans.npz")
    try:
        return spans, Samples.load(folder / "samples.npz"), ""
    except StoreError as error:
        return spans, None, str(error)


def trace_of(record: Record, spans: SpanTable, samples: Samples | None) -> Iterator[str]:
    """The text of the JSON file, piece by piece."""
    origin = origin_ns(spans, samples)
    head = {"displayTimeUnit": "ms", "otherData": {"run": record.id, "model": record.spec.model}}
    yield json.dumps(head)[:-1] + ', "traceEvents": [\n'
    first = True
    for event in _events(record, spans, samples, origin):
        yield ("" if first else ",\n") + json.dumps(event)
        first = False
    yield "\n]}\n"


def _events(record: Record, spans: SpanTable, samples: Samples | None, origin: int) -> Iterator[dict[str, Any]]:
    title = f"{record.spec.model} {record.spec.mode} batch {record.spec.batch}, {record.spec.engine_text}"
    yield _named("process_name", _RUN, 0, title)
    for kind, track in _KINDS.items():
        chosen = spans.select(kind=kind)
        if len(chosen):
            yield _named("thread_name", _RUN, track, _NAMES[track])
            yield from _complete(chosen, track, origin)
    ops = _sorted(spans.select(kind="op"))
    if len(ops):
        yield _named("thread_name", _RUN, _LAYERS, _NAMES[_LAYERS])
        yield from _layers(ops, origin)
        yield from _ops(ops, origin)
    if samples is not None:
        yield _named("process_name", _SENSORS, 0, "sensors")
        for timeline in samples.timelines:
            yield from _counters(timeline, origin)


def _named(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": track, "args": {"name": name}}


def _complete(spans: SpanTable, track: int, origin: int) -> Iterator[dict[str, Any]]:
    for index in range(len(spans)):
        yield _event(spans, index, track, origin)


def _event(spans: SpanTable, index: int, track: int, origin: int) -> dict[str, Any]:
    words = spans.words
    about = {"phase": words[spans.phase[index]], "layer": words[spans.layer[index]]}
    facts: dict[str, Any] = {name: text for name, text in about.items() if text}
    if spans.step[index] >= 0:
        facts["step"] = int(spans.step[index])
    kind, name = words[spans.kind[index]], words[spans.name[index]]
    shown = f"step {facts['step']} ({name})" if kind == "step" else name
    start, length = int(spans.start_ns[index]) - origin, int(spans.end_ns[index] - spans.start_ns[index])
    return _x(shown, kind, track, start, length, facts)


def _x(name: str, kind: str, track: int, start_ns: int, length_ns: int, facts: dict[str, Any]) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": kind, "pid": _RUN, "tid": track}
    return event | {"ts": start_ns / 1000, "dur": length_ns / 1000, "args": facts}


def _sorted(spans: SpanTable) -> SpanTable:
    order = np.lexsort((-spans.end_ns, spans.start_ns))
    return spans.where(order)  # type: ignore[arg-type]


def _layers(ops: SpanTable, origin: int) -> Iterator[dict[str, Any]]:
    """Stays in a layer: calls one after another that belong to it, in the same phase of the same step."""
    stay: tuple[Any, int, int] | None = None  # what, start, end
    for index in range(len(ops)):
        what = (int(ops.layer[index]), int(ops.phase[index]), int(ops.step[index]))
        start, end = int(ops.start_ns[index]), int(ops.end_ns[index])
        if stay and stay[0] == what and start - stay[2] < _GAP_NS:
            stay = (what, stay[1], max(end, stay[2]))
            continue
        if stay:
            yield from _stay(ops, stay, min(stay[2], start), origin)
        stay = (what, start, end)
    if stay:
        yield from _stay(ops, stay, stay[2], origin)


def _stay(ops: SpanTable, stay: tuple[Any, int, int], end: int, origin: int) -> Iterator[dict[str, Any]]:
    (layer, phase, step), start, _ = stay
    if ops.words[layer] and end > start:
        facts = {"phase": ops.words[phase], "step": step}
        yield _x(ops.words[layer], "layer", _LAYERS, start - origin, end - start, facts)


def _ops(ops: SpanTable, origin: int) -> Iterator[dict[str, Any]]:
    """On a track, events must lie side by side or inside each other: what crosses another goes to the next track."""
    tracks: list[list[int]] = []  # for each, the ends of what is open, the innermost last
    for index in range(len(ops)):
        start, end = int(ops.start_ns[index]), int(ops.end_ns[index])
        number = next((at for at, ends in enumerate(tracks) if _fits(ends, start, end)), len(tracks))
        if number == len(tracks):
            tracks.append([])
            yield _named("thread_name", _RUN, _OPS + number, "ops" if not number else f"ops, beside ({number + 1})")
        tracks[number].append(end)
        yield _event(ops, index, _OPS + number, origin)


def _fits(ends: list[int], start: int, end: int) -> bool:
    while ends and ends[-1] <= start:
        ends.pop()
    return not ends or end <= ends[-1]


def _counters(timeline: Timeline, origin: int) -> Iterator[dict[str, Any]]:
    """A value holds until the next: only changes are written, and the last sample."""
    for column, channel in enumerate(timeline.channels):
        values, unit = timeline.values[:, column], channel.unit
        if channel.kind == "counter":
            values, unit = growth_rate(channel, timeline.t_ns, values), _RATES.get(unit, f"{unit}/s")
        changed = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
        last = len(values) - 1
        for index in changed if len(changed) and changed[-1] == last else [*changed, last]:
            if index >= 0 and np.isfinite(values[index]):
                ts = (int(timeline.t_ns[index]) - origin) / 1000
                args = {unit or "value": float(values[index])}
                yield {"ph": "C", "name": channel.name, "pid": _SENSORS, "ts": ts, "args": args}
