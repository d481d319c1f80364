"""What a run found, in two sentences."""

from ergometer.core.quantity import format_value
from ergometer.core.record import Metric, Record

_PHASES = ("forward", "backward", "optimizer")
_WHAT = {"train": "A training step", "infer": "An inference"}


def verdict(record: Record) -> str:
    """What a step costs and where most of it goes; for a run that failed, how and why."""
    if record.status != "ok":
        why = f": {record.reason}" if record.reason else ""
        return f"{record.status.replace('_', ' ').capitalize()}{why}."
    found = record.metrics
    step, wall = found.get("step_time"), found.get("wall_time")
    said = []
    if step is not None:
        spread = ""
        if step.low is not None and step.high is not None and step.value:
            spread = f" ±{100 * max(step.high - step.value, step.value - step.low) / step.value:.1f} %"
        said.append(
            f"{_WHAT[record.spec.mode]} (batch {record.spec.batch}) takes {format_value(step.value, 's')}{spread}"
        )
        parts = {name: found[f"{name}_time"].value / step.value for name in _PHASES if f"{name}_time" in found}
        if len(parts) > 1:
            said[-1] += f": {', '.join(f'{100 * share:.0f} % {name}' for name, share in parts.items())}"
    costs = [
        f"{_amount(found[name])} {text}"
        for name, text in (
            ("peak_memory", "of memory at its peak"),
            ("energy_per_step", "a step"),
            ("energy", "in all"),
        )
        if name in found
    ]
    if step is None and wall is not None:
        said.append(f"It took {' and '.join([format_value(wall.value, 's'), *costs])}")
    elif costs:
        said.append(f"It needs {' and '.join(costs)}")
    return ". ".join(said) + "." if said else "Nothing was measured."


def _amount(metric: Metric) -> str:
    return ("about " if metric.source == "estimated" else "") + format_value(metric.value, metric.unit)


def tone(record: Record) -> str:
    """good, doubtful or bad."""
    if record.status == "running":
        return "doubtful"
    if record.status != "ok":
        return "bad"
    return "doubtful" if record.warnings else "good"
