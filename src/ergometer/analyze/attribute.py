"""Which operation, layer and phase cost what: time, calls, CPU, accelerator, memory and energy."""

import math
from dataclasses import dataclass

import numpy as np

from ergometer.analyze.join import Floats, Totals, coverage, totals, windows
from ergometer.analyze.sampled import COVERED, TRUSTED, energy_channels
from ergometer.store.samples import Samples
from ergometer.store.spans import SpanTable

BETWEEN = "(between ops)"
LEVELS = ("phases", "layers", "ops")
_GPU_COLUMNS = {3: "gpu_utilisation.", 4: "gpu_memory."}
Key = tuple[str, str, str]
Groups = dict[Key, tuple[int, Floats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one phase, layer or op costs per step. What was not measured is None.

    gpu_s: how long GPUs were busy, by their utilisation; gpu_memory_bytes: what was taken of their memory meanwhile, on
    the average. source: integrated, or estimated where single calls are shorter than the sensor resolves.
    """

    phase: str
    layer: str
    name: str
    calls: float
    time_s: float
    share: float
    cpu_s: float | None
    gpu_s: float | None
    energy_j: float | None
    memory_bytes: float | None
    gpu_memory_bytes: float | None
    source: str


def attribute(spans: SpanTable, samples: Samples, level: str) -> list[Share]:
    """Shares of the traced steps at a level (phases, layers or ops), largest first; they add up to 1.

    What lies between the ops of a phase is a share of its own, so that nothing is lost.
    """
    steps = spans.select(kind="step", name="traced")
    if not len(steps):
        return []
    channels = _usable_channels(samples, steps)
    resolution_s = _resolution(channels)
    phases = spans.select(kind="phase")
    phases = phases.where(phases.start_ns >= steps.start_ns[0])
    rows = _grouped(phases, "phases", _amounts(channels, phases))
    if level != "phases":
        ops = spans.select(kind="op")
        amounts = _amounts(channels, ops)
        between = _rest(rows, _grouped(ops, "phases", amounts), level)
        rows = _grouped(ops, level, amounts) | between
    memory = _grouped(traced := spans.select(kind="memory"), level, traced.memory_bytes.astype(np.float64)[:, None])
    whole_s = sum(sums[0] for _, sums in rows.values())
    shares = [
        Share(
            phase=key[0],
            layer=key[1],
            name=key[2],
            calls=calls / len(steps),
            time_s=float(sums[0]) / len(steps),
            share=float(sums[0]) / whole_s if whole_s else 0.0,
            cpu_s=_measured(sums[1] / len(steps)),
            gpu_s=_measured(sums[3] / len(steps) / 100),
            energy_j=_measured(sums[2] / len(steps)),
            memory_bytes=float(memory[key][1][0]) if key in memory else None,
            gpu_memory_bytes=_measured(sums[4] / sums[0]) if sums[0] else None,
            source="integrated" if sums[0] / max(calls, 1) >= TRUSTED * resolution_s else "estimated",
        )
        for key, (calls, sums) in rows.items()
    ]
    return sorted(shares, key=lambda share: -share.time_s)


def _measured(amount: float) -> float | None:
    return None if np.isnan(amount) else float(amount)


def _grouped(spans: SpanTable, level: str, amounts: Floats) -> Groups:
    """(phase, layer, op) -> how many spans there are and their summed amounts; '' for what the level leaves out."""
    optimizer = spans.words.index("optimizer") if "optimizer" in spans.words else -1
    layer = np.where(spans.phase == optimizer, -1, spans.layer) + 1
    parts = {"phases": (), "layers": (layer,), "ops": (layer, spans.name)}[level]
    codes = spans.phase.copy()
    for part in parts:
        codes = codes * (len(spans.words) + 1) + part
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    calls = np.bincount(group, minlength=len(first))
    sums = np.array([np.bincount(group, weights=column, minlength=len(first)) for column in amounts.T]).T
    return {_key(spans, int(at), level, optimizer): (int(calls[n]), sums[n]) for n, at in enumerate(first)}


def _key(spans: SpanTable, at: int, level: str, optimizer: int) -> Key:
    """What the span at that place is called at that level."""
    phase = spans.words[spans.phase[at]]
    if level == "phases":
        return phase, "", ""
    layer = "(optimizer)" if spans.phase[at] == optimizer else spans.words[spans.layer[at]] or "(model)"
    return phase, layer, spans.words[spans.name[at]] if level == "ops" else ""


def _rest(whole: Groups, ops: Groups, level: str) -> Groups:
    """What of each phase lies between its ops."""
    found = {}
    for key, (_, sums) in whole.items():
        covered = ops[key][1] if key in ops else np.zeros_like(sums)
        found[key[0], BETWEEN, BETWEEN if level == "ops" else ""] = (0, np.maximum(sums - covered, 0.0))
    return found


def _usable_channels(samples: Samples, steps: SpanTable) -> dict[int, list[tuple[Totals, int]]]:
    """Columns of _amounts -> the channels that make them, where samples cover the traced steps; empty where not."""
    named = [channel.name for channel in samples.channels()]
    wanted = {1: ["process.cpu"], 2: [channel.name for channel in energy_channels(samples.channels())]}
    wanted |= {at: [name for name in named if name.startswith(stem)] for at, stem in _GPU_COLUMNS.items()}
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


def _resolution(channels: dict[int, list[tuple[Totals, int]]]) -> float:
    """The coarsest resolution among the channels in s; infinite where one is a model."""
    used = [(table.channels[at], float(table.resolution_s[at])) for found in channels.values() for table, at in found]
    return max((math.inf if channel.modelled else resolution_s for channel, resolution_s in used), default=0.0)


def _amounts(channels: dict[int, list[tuple[Totals, int]]], spans: SpanTable) -> Floats:
    """Per span: seconds, CPU seconds, joules, and percent and bytes of GPUs times seconds; NaN where not measured."""
    out = np.full((len(spans), 5), np.nan)
    out[:, 0] = spans.duration_s
    for column, found in channels.items():
        for table, at in found:
            total = np.ascontiguousarray(table.total[:, at : at + 1])
            out[:, column] = np.nan_to_num(out[:, column]) + windows(table, spans.start_ns, spans.end_ns, total)[:, 0]
    return out
