"""Which operation, layer and phase cost what: time, calls, CPU, memory and energy."""

import math
from dataclasses import dataclass

import numpy as np

from ergometer.analyze.join import Floats, Totals, coverage, totals, windows
from ergometer.analyze.sampled import COVERED, energy_channels
from ergometer.store.samples import Samples
from ergometer.store.spans import SpanTable

BETWEEN = "(between ops)"
LEVELS = ("phases", "layers", "ops")


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one phase, layer or op costs per step. CPU and energy are None where they were not measured.

    source: integrated, or estimated where single calls are shorter than the sensor resolves.
    """

    phase: str
    layer: str
    name: str
    calls: float
    time_s: float
    share: float
    cpu_s: float | None
    energy_j: float | None
    memory_bytes: float | None
    source: str


def attribute(spans: SpanTable, samples: Samples, level: str) -> list[Share]:
    """Shares of the traced steps at a level (phases, layers or ops), largest first; they add up to 1.

    What lies between the ops of a phase is a share of its own, so that nothing is lost.
    """
    steps = spans.select(kind="step", name="traced")
    phases = spans.select(kind="phase")
    if not len(steps):
        return []
    phases = phases.where(phases.start_ns >= steps.start_ns[0])
    ops = spans.select(kind="op")
    count = len(steps)
    channels = _usable_channels(samples, steps)
    op_amounts, _ = _amounts(channels, ops)
    phase_amounts, resolution_s = _amounts(channels, phases)
    phase_labels = _labels(phases, "phases")
    op_labels = _labels(ops, level)
    rows: dict[tuple[str, str, str], Floats] = {}
    calls: dict[tuple[str, str, str], int] = {}
    if level == "phases":
        _add(rows, calls, phase_labels, phase_amounts)
    else:
        _add(rows, calls, op_labels, op_amounts)
        rest: dict[tuple[str, str, str], Floats] = {}
        _add(rest, {}, phase_labels, phase_amounts)
        _add(rest, {}, _labels(ops, "phases"), -op_amounts)
        for (phase, _, _), amounts in rest.items():
            key = (phase, BETWEEN, BETWEEN if level == "ops" else "")
            rows[key] = np.maximum(amounts, 0.0)
            calls[key] = 0
    memory = _memory(spans, level)
    whole = sum(amounts[0] for amounts in rows.values())
    shortest = {key: rows[key][0] / max(calls[key], 1) for key in rows}
    shares = [
        Share(
            phase=key[0],
            layer=key[1],
            name=key[2],
            calls=calls[key] / count,
            time_s=amounts[0] / count,
            share=amounts[0] / whole if whole else 0.0,
            cpu_s=None if np.isnan(amounts[1]) else float(amounts[1]) / count,
            energy_j=None if np.isnan(amounts[2]) else float(amounts[2]) / count,
            memory_bytes=memory.get(key),
            source="integrated" if shortest[key] >= 10 * resolution_s else "estimated",
        )
        for key, amounts in rows.items()
    ]
    return sorted(shares, key=lambda share: -share.time_s)


def _labels(spans: SpanTable, level: str) -> list[tuple[str, str, str]]:
    words = spans.words
    phases = [words[number] for number in spans.phase]
    if level == "phases":
        return [(phase, "", "") for phase in phases]
    layers = [words[number] or "(model)" for number in spans.layer]
    layers = [layer if phase != "optimizer" else "(optimizer)" for layer, phase in zip(layers, phases, strict=True)]
    if level == "layers":
        return [(phase, layer, "") for phase, layer in zip(phases, layers, strict=True)]
    return [(phase, layer, words[name]) for phase, layer, name in zip(phases, layers, spans.name, strict=True)]


def _add(
    rows: dict[tuple[str, str, str], Floats],
    calls: dict[tuple[str, str, str], int],
    labels: list[tuple[str, str, str]],
    amounts: Floats,
) -> None:
    for label, amount in zip(labels, amounts, strict=True):
        rows[label] = rows[label] + amount if label in rows else amount
        calls[label] = calls.get(label, 0) + 1


def _usable_channels(samples: Samples, steps: SpanTable) -> dict[int, list[tuple[Totals, int]]]:
    """Columns of _amounts -> the channels that make them, where samples cover the traced steps; empty where not."""
    wanted = {1: ["process.cpu"], 2: [channel.name for channel in energy_channels(samples.channels())]}
    tables = [totals(timeline) for timeline in samples.timelines if len(timeline.t_ns) > 2]
    usable: dict[int, list[tuple[Totals, int]]] = {}
    for column, names in wanted.items():
        found = [
            (table, at)
            for table in tables
            for at, channel in enumerate(table.channels)
            if channel.name in names and coverage(table, steps.start_ns, steps.end_ns)[at] >= COVERED
        ]
        usable[column] = found if len(found) == len(names) else []
    return usable


def _amounts(channels: dict[int, list[tuple[Totals, int]]], spans: SpanTable) -> tuple[Floats, float]:
    """Per span: seconds, CPU seconds and joules (NaN where not measured); and the coarsest resolution used."""
    out = np.full((len(spans), 3), np.nan)
    out[:, 0] = spans.duration_s
    resolution_s = 0.0
    for column, found in channels.items():
        for table, at in found:
            amounts = windows(table, spans.start_ns, spans.end_ns)[:, at]
            out[:, column] = np.nan_to_num(out[:, column]) + amounts
            resolution_s = max(resolution_s, float(table.resolution_s[at]))
            if table.channels[at].modelled:
                resolution_s = math.inf
    return out, resolution_s


def _memory(spans: SpanTable, level: str) -> dict[tuple[str, str, str], float]:
    """Bytes allocated per step, from the step that traced memory."""
    traced = spans.select(kind="memory")
    found: dict[tuple[str, str, str], float] = {}
    for label, size in zip(_labels(traced, level), traced.memory_bytes, strict=True):
        found[label] = found.get(label, 0.0) + float(size)
    return found
