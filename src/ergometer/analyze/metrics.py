"""Spans and samples of one run -> its Metrics, what is absent and why, and what makes it doubtful."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ergometer.analyze.join import totals
from ergometer.analyze.sampled import Reading, cpu_metrics, level_metrics, read_windows, whole_energy
from ergometer.analyze.statistics import FEWEST, TARGET, drift, median_interval, spread
from ergometer.core.record import Metric
from ergometer.core.spec import Spec
from ergometer.store.samples import Samples
from ergometer.store.spans import SpanTable

_LOADING = 0.02  # of the steps' time: above, what is done between the steps cannot be neglected
_PRESSURE = 0.10
_STOLEN = 0.03
_DISAGREE = 0.10
_SLOWED = 0.90
_FAULTS = 100  # a step: fewer are not of the network's memory
_IN_KERNEL = 0.05  # of the CPU time
_MOVED = 2.0  # times the shorter handover, which by itself changes by half: cores do not lie where they did

# What a Record is expected to have: the channels it is made of, and the sensors that could have given them.
_EXPECTED = {
    "temperature": ("temperature.", ("thermal",)),
    "frequency": ("frequency.", ("frequency",)),
    "cpu_utilisation": ("cpu.", ("cores",)),
    "gpu_utilisation": ("gpu_utilisation.", ("nvml", "amdgpu", "jetson_gpu", "adreno", "mali")),
}


class Findings:
    """What an analysis gathers."""

    def __init__(self) -> None:
        self.metrics: dict[str, Metric] = {}
        self.absent: dict[str, str] = {}
        self.warnings: list[str] = []

    def energy(self, readings: dict[str, Reading], pieces: dict[str, int]) -> None:
        """Whole-device energy, divided by each number of pieces: {'energy_per_step': 20, ...}."""
        energy, why = whole_energy(readings)
        for name, count in pieces.items():
            if energy is None:
                self.absent[name] = why
            else:
                self.metrics[name] = replace(energy, value=energy.value / count)

    def levels(self, readings: dict[str, Reading]) -> None:
        cores, absent = cpu_metrics(readings)
        self.metrics |= cores
        self.absent |= absent
        levels, absent = level_metrics(readings)
        self.metrics |= levels
        self.absent |= absent

    def unmeasured(self, samples: Samples) -> None:
        """Say of each kind of metric that is wholly absent why no sensor gave it."""
        for metric, (prefix, sensors) in _EXPECTED.items():
            if any(name.split(".")[0] == metric for name in (*self.metrics, *self.absent)):
                continue
            reasons = [f"{name}: {samples.missing[name]}" for name in sensors if name in samples.missing]
            read = any(channel.name.startswith(prefix) for channel in samples.channels())
            otherwise = "too short a time for its sensor" if read else "its sensor was not asked"
            self.absent[metric] = "; ".join(reasons) or otherwise


def timed(times_s: Sequence[float]) -> Metric:
    median, low, high = median_interval(times_s)
    return Metric(value=median, unit="s", n=len(times_s), low=low, high=high, source="timed")


def step_metrics(spec: Spec, spans: SpanTable, samples: Samples, facts: dict[str, Any]) -> Findings:
    """Findings of a training or inference run; facts is what the worker reported."""
    findings = Findings()
    steps = spans.select(kind="step", name="timed")
    _memory(findings, facts)
    _counts(findings, facts)
    if not len(steps):
        return findings
    times = steps.duration_s
    step_time = timed(list(times))
    findings.metrics["step_time"] = step_time
    for name, percent in (("p90", 90), ("p99", 99)):
        value = float(np.percentile(times, percent))
        findings.metrics[f"step_time.{name}"] = Metric(value=value, unit="s", n=len(times))
    findings.metrics["throughput"] = Metric(
        value=spec.batch / step_time.value,
        unit="samples/s",
        n=step_time.n,
        low=spec.batch / step_time.high if step_time.high else None,
        high=spec.batch / step_time.low if step_time.low else None,
    )
    phases = spans.select(kind="phase")
    for phase in ("environment", "forward", "backward", "optimizer"):
        chosen = phases.select(phase=phase)
        owner = _steps_around(chosen, steps)
        if (owner >= 0).any():  # a step may have a phase twice: a network of several passes
            sums = np.bincount(owner[owner >= 0], weights=chosen.duration_s[owner >= 0])
            findings.metrics[f"{phase}_time"] = timed(list(sums))
    if len(phases.select(phase="step")):
        for phase in ("forward", "backward", "optimizer"):
            findings.absent[f"{phase}_time"] = "the engine runs a training step as one call"
    if facts.get("untraced"):
        findings.absent["op_times"] = facts["untraced"]
    loads = spans.select(kind="load")
    if len(loads):
        findings.metrics["data_time"] = replace(timed(list(loads.duration_s)), note="to load a batch, beside the step")
    _achieved(findings)
    for stage, metric in (("load", "load_time"), ("first step", "first_step_time")):
        spent = spans.select(kind="stage", name=stage)
        if len(spent):
            findings.metrics[metric] = Metric(value=float(spent.duration_s[0]), unit="s")

    loading = float(loads.duration_s.sum()) > _LOADING * float(times.sum())
    readings = read_windows(samples, steps.start_ns, steps.end_ns, interrupted=loading)
    findings.levels(readings)
    findings.unmeasured(samples)
    findings.energy(readings, {"energy_per_step": len(steps), "energy_per_sample": len(steps) * spec.batch})
    cpu = readings.get("process.cpu")
    if cpu and not cpu.refused:
        findings.metrics["cpu_time_per_step"] = Metric(
            value=cpu.amount / len(steps),
            unit="s",
            n=len(steps),
            source=cpu.source,
            note="mean; all threads of the worker",
        )
    _usage(findings, facts.get("usage"), len(steps))
    span = read_windows(samples, steps.start_ns[:1], steps.end_ns[-1:])  # with what lies between the steps
    findings.warnings += [*facts.get("remarks", []), *_doubts(list(times), samples, span, facts)]
    return findings


def _steps_around(spans: SpanTable, steps: SpanTable) -> Any:
    """The step that each span lies in; -1 for none."""
    at = np.searchsorted(steps.start_ns, spans.start_ns, side="right") - 1
    return np.where(spans.end_ns <= steps.end_ns[np.maximum(at, 0)], at, -1)


def _memory(findings: Findings, facts: dict[str, Any]) -> None:
    memory = facts.get("memory", {})
    if "peak" in memory:
        findings.metrics["peak_memory"] = Metric(
            value=memory["peak"], unit="B", source="counter", note="resident memory of the worker, with the framework"
        )
    parts = memory.get("parts")
    if not parts:
        return
    on_device = parts.get("device_peak") is not None
    whole = parts["device_peak"] if on_device else memory["peak"]
    if on_device:
        findings.metrics["gpu_peak_memory"] = Metric(value=whole, unit="B", source="counter")
    named = {name: parts[name] for name in ("parameters", "gradients", "optimizer", "input", "activations")}
    for name in [name for name, value in named.items() if value is None]:
        del named[name]
        findings.absent[f"memory.{name}"] = "the engine does not tell; part of memory.other"
    if not on_device:
        named["baseline"] = memory["baseline"]
    for name, value in named.items():
        findings.metrics[f"memory.{name}"] = Metric(value=value, unit="B", source="counter")
    other = whole - sum(named.values())
    note = "peak less all other parts"
    if other < 0:
        note += "; negative, because gradients and activations are not all held at the same time"
    findings.metrics["memory.other"] = Metric(value=other, unit="B", source="counter", note=note)


def _counts(findings: Findings, facts: dict[str, Any]) -> None:
    counts = facts.get("counts")
    if not counts:
        return
    units = {
        "parameters": "params",
        "macs_forward": "MAC",
        "macs_backward": "MAC",
        "bytes_forward": "B",
        "bytes_backward": "B",
    }
    for name, unit in units.items():
        findings.metrics[name] = Metric(
            value=counts[name], unit=unit, source="counter", note="per step" if unit != "params" else ""
        )


def _usage(findings: Findings, usage: dict[str, Any] | None, steps: int) -> None:
    """Page faults and the kernel's time; a warning where memory is given back in a step and taken anew in the next."""
    if usage is None:
        return
    faults, kernel_s = usage["page_faults"] / steps, usage["kernel_s"] / steps
    for name, value, unit in (("page_faults", faults, "faults"), ("kernel_time_per_step", kernel_s, "s")):
        findings.metrics[name] = Metric(value=value, unit=unit, n=steps, source="counter", note="mean per step")
    if "remedy" in usage and faults >= _FAULTS and usage["kernel_s"] > _IN_KERNEL * usage["cpu_s"]:
        share = 100 * usage["kernel_s"] / usage["cpu_s"]
        findings.warnings.append(
            f"page faults: {faults:.0f} a step, {share:.0f} % of the CPU time is the kernel's: freed memory goes back "
            f"to the system and is taken anew (to keep it: {usage['remedy']})"
        )


def _achieved(findings: Findings) -> None:
    metrics = findings.metrics
    if "macs_forward" not in metrics:
        return
    flop = 2 * (metrics["macs_forward"].value + metrics["macs_backward"].value)
    step, note = metrics["step_time"], "2 x multiply-accumulates / step time"
    if "environment_time" in metrics:
        learning = [metrics[f"{phase}_time"].value for phase in ("forward", "backward", "optimizer")]
        step = Metric(value=sum(learning), unit="s", n=step.n)
        note = "2 x multiply-accumulates / (step time less environment_time), whose own are not counted"
    metrics["achieved_flops"] = Metric(
        value=flop / step.value,
        unit="FLOP/s",
        n=step.n,
        low=flop / step.high if step.high else None,
        high=flop / step.low if step.low else None,
        note=note,
    )


def _doubts(times: list[float], samples: Samples, readings: dict[str, Reading], facts: dict[str, Any]) -> list[str]:
    """Why the step time may not be what another day would show."""
    doubts = []
    reached = spread(times)
    more = "--steps" if facts.get("fixed_steps") else "--time"
    if len(times) < FEWEST:
        doubts.append(f"too few samples: {len(times)} steps, and {FEWEST} are needed for an interval (raise {more})")
    elif reached > TARGET:
        doubts.append(
            f"too few samples: the interval is ±{100 * reached:.1f} % after {len(times)} steps (raise {more})"
        )
    change = drift(times)
    if change:
        doubts.append(
            f"drift: steps became {100 * abs(change):.0f} % {'slower' if change > 0 else 'faster'} during the run"
        )
    if facts.get("warmup_settled") is False:
        doubts.append("drift: step times had not settled when the warm-up ended")
    pressure = readings.get("pressure.cpu")
    if pressure and not pressure.refused and pressure.amount > _PRESSURE * pressure.seconds:
        share = 100 * pressure.amount / pressure.seconds
        doubts.append(f"CPU pressure: tasks waited for a core {share:.0f} % of the time (stop other programs)")
    wait, cpu = readings.get("process.wait"), readings.get("process.cpu")
    if wait and cpu and cpu.amount > 0 and wait.amount > _PRESSURE * cpu.amount:
        share = 100 * wait.amount / (wait.amount + cpu.amount)
        doubts.append(f"CPU pressure: the worker itself waited {share:.0f} % of its time for a core")
    steal = readings.get("cpu.steal")
    if steal and not steal.refused and steal.amount > _STOLEN * steal.seconds:
        share = 100 * steal.amount / steal.seconds
        doubts.append(f"CPU pressure: other virtual machines took {share:.0f} % of a core")
    doubts += _throttling(samples, readings)
    return [f"unstable: {doubt}" for doubt in doubts]


def _throttling(samples: Samples, readings: dict[str, Reading]) -> list[str]:
    doubts = []
    slowed = [
        name
        for name, reading in readings.items()
        if name.startswith("throttle.")
        and reading.n
        and (reading.amount > 0 if reading.channel.kind == "counter" else reading.high > 0)
    ]
    if slowed:
        doubts.append(f"throttling: {', '.join(slowed)}")
    for timeline in samples.timelines:
        for column, channel in enumerate(timeline.channels):
            third = len(timeline.t_ns) // 3
            if channel.name.startswith("frequency.") and third > 10 and channel.name in readings:
                first, last = np.nanmean(timeline.values[:third, column]), np.nanmean(timeline.values[-third:, column])
                if last < _SLOWED * first:
                    doubts.append(f"throttling: {channel.name} fell from {first / 1e9:.2f} to {last / 1e9:.2f} GHz")
    return doubts


def window_metrics(samples: Samples, start_ns: int, end_ns: int, cores: int) -> Findings:
    """Findings of any interval: a command, or a window of the user's own program."""
    findings = Findings()
    findings.metrics["wall_time"] = Metric(value=(end_ns - start_ns) * 1e-9, unit="s")
    readings = read_windows(samples, np.array([start_ns]), np.array([end_ns]))
    findings.levels(readings)
    findings.unmeasured(samples)
    findings.energy(readings, {"energy": 1})
    cpu = readings.get("process.cpu")
    if cpu and not cpu.refused:
        findings.metrics["cpu_time"] = Metric(value=cpu.amount, unit="s", n=cpu.n, source=cpu.source)
        share = 100 * cpu.amount / cpu.seconds
        findings.metrics["process_utilisation"] = Metric(
            value=share, unit="%", n=cpu.n, source=cpu.source, note=f"100 % is one core of {cores}"
        )
    memory = readings.get("process.rss")
    if memory and memory.n:
        findings.metrics["peak_memory"] = Metric(
            value=memory.high, unit="B", n=memory.n, source="estimated", note="highest sample: a shorter peak is missed"
        )
    findings.warnings += [f"unstable: {doubt}" for doubt in _throttling(samples, readings)]
    return findings


def end_metrics(samples: Samples) -> Findings:
    """What is read only when sampling starts and stops: fair share of memory, the GPU's own energy counter."""
    findings = Findings()
    for timeline in samples.timelines:
        for channel, values in zip(timeline.channels, timeline.values.T, strict=True):
            if len(values) < 2 or not np.isfinite(values[[0, -1]]).all():
                continue
            if channel.name == "process.pss":
                note = "when the run ended: shared pages counted by their share"
                metric = Metric(value=float(values[-1]), unit="B", source="counter", note=note)
                findings.metrics["pss_memory"] = metric
            elif channel.name.startswith("total_energy."):
                _check_energy(findings, samples, channel.name, float(values[-1] - values[0]))
    return findings


def _check_energy(findings: Findings, samples: Samples, name: str, counted_j: float) -> None:
    """Keep a GPU's own count of the whole run, and warn where its sampled power does not add up to it."""
    note = "whole run, with loading and tracing"
    findings.metrics[name] = Metric(value=counted_j, unit="J", source="counter", note=note)
    found = samples.find(name.replace("total_energy.", "power."))
    if found is None or counted_j <= 0:
        return
    integrated_j = float(totals(found[0]).total[-1, found[1]])
    if abs(integrated_j / counted_j - 1) > _DISAGREE:
        findings.warnings.append(
            f"{name}: the GPU counted {counted_j:.1f} J, its sampled power adds up to {integrated_j:.1f} J"
        )


def have_moved(before_s: float | None, after_s: float | None) -> bool:
    """Whether cores lie nearer or further apart than before; where that is not known, no."""
    if before_s is None or after_s is None:
        return False
    return max(before_s, after_s) > _MOVED * min(before_s, after_s)


def add_handover(findings: Findings, before: float | str, after: float | str) -> None:
    """How far apart the cores lay around a run, in seconds for there and back, or why that is not known."""
    if isinstance(before, str) or isinstance(after, str):
        findings.absent["handover_time"] = before if isinstance(before, str) else str(after)
        return
    near, far = sorted((before, after))
    note = "mean of before and after the run; from a core to the one furthest from it, and back"
    findings.metrics["handover_time"] = Metric(value=(near + far) / 2, unit="s", n=2, low=near, high=far, note=note)
    if have_moved(before, after):
        findings.warnings.append(
            f"cores moved: from one to another and back took {before * 1e9:.0f} ns before the run and "
            f"{after * 1e9:.0f} ns after it; steps of several threads depend on it (a virtual machine's host does that)"
        )


def observer_metrics(samples: Samples, summary: dict[str, Any] | None, period_s: float) -> dict[str, Metric]:
    """What observing cost and how regular it was."""
    found = {}
    if summary and summary["wall_s"] > 0:
        share = 100 * summary["cpu_s"] / summary["wall_s"]
        found["observer.cpu"] = Metric(value=share, unit="%", source="counter", note="of one core, by the sampler")
    if samples.timelines:
        steps = np.diff(samples.timelines[0].t_ns) * 1e-9
        if len(steps) >= 3:
            rate = len(steps) / float(steps.sum())
            found["observer.rate"] = Metric(value=rate, unit="Hz", n=len(steps), source="timed")
            late = float(np.percentile(np.abs(steps - period_s), 95))
            note = "95 % of the samples came within this of their time"
            found["observer.jitter"] = Metric(value=late, unit="s", n=len(steps), source="timed", note=note)
    return found
