"""All that a page shows of one run, as JSON: numbers as text with how they were obtained, shares, steps, timeline."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.analyze.attribute import LEVELS, attribute
from ergometer.core import registry
from ergometer.core.errors import ErgoError, StoreError
from ergometer.core.model import Model
from ergometer.core.quantity import format_value
from ergometer.core.record import Metric, Record
from ergometer.report.timeline import MOST_VALUES, packed
from ergometer.report.verdict import tone, verdict
from ergometer.store.samples import Samples
from ergometer.store.spans import SpanTable

CARDS = ("step_time", "throughput", "energy_per_step", "peak_memory", "wall_time", "energy")
_SOURCES = {
    "timed": "timed with the monotonic clock",
    "counter": "read from a counter",
    "integrated": "integrated over samples",
    "estimated": "estimated, not measured",
}
_BINS = 60
_POINTS = 1500


def brief(record: Record) -> dict[str, Any]:
    """What a list of runs shows of one."""
    data = record.to_json()
    for name in ("directory", "format"):
        del data[name]
    data["metrics"] = {name: _metric(metric) for name, metric in record.metrics.items()}
    data["engine_text"] = record.spec.engine_text
    return data | {"verdict": verdict(record), "tone": tone(record)}


def details(record: Record, most_values: int = MOST_VALUES) -> dict[str, Any]:
    """Everything; what cannot be shown is named in missing."""
    missing: list[str] = []
    folder = Path(record.directory)
    spans = _loaded(SpanTable, folder / "spans.npz", "step times, breakdown and steps in the timeline", missing)
    samples = _loaded(Samples, folder / "samples.npz", "timeline and what is sampled in the breakdown", missing)
    data = brief(record)
    data["cards"] = [name for name in CARDS if name in record.metrics or name in record.absent]
    data["papers"], data["published"] = _published(record)
    data["steps"] = _steps(spans) if spans is not None else None
    data["shares"] = _shares(spans, samples or Samples(()))
    data["timeline"] = packed(spans, samples, most_values)
    data["notes"] = list(samples.notes) if samples else []
    return data | {"missing": missing}


def _loaded(kind: Any, path: Path, what: str, missing: list[str]) -> Any:
    try:
        return kind.load(path)
    except StoreError as error:
        missing.append(f"Without {what}: {_unplaced(str(error), path)}")
        return None


def _unplaced(text: str, path: Path) -> str:
    """A page is passed on: it names the file, not where it lay."""
    return text.replace(str(path), path.name)


def _metric(metric: Metric) -> dict[str, Any]:
    """The value with its text, and how it was obtained in a sentence."""
    how = _SOURCES[metric.source]
    interval = ""
    if metric.low is not None and metric.high is not None:
        interval = f"{format_value(metric.low, metric.unit)} to {format_value(metric.high, metric.unit)}"
        how += f"; {'95 % interval' if metric.source == 'timed' else 'lowest and highest'} {interval}"
    how += f"; n = {metric.n}" if metric.n != 1 else ""
    how += f"; {metric.note}" if metric.note else ""
    return {**asdict(metric), "text": format_value(metric.value, metric.unit), "interval": interval, "how": how}


def model_of(record: Record) -> Model | None:
    """The network of the suite that it ran; None for the user's own."""
    name = record.spec.model.partition(":")[0]
    try:
        model: Model = registry.load("models", name)
        return model
    except ErgoError:
        return None


def _published(record: Record) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What papers state of the network, and what they measured with this mode, batch and input."""
    model, spec = model_of(record), record.spec
    if model is None or spec.mode not in ("train", "infer"):
        return {}, []
    found = []
    for item in model.published:
        same = item.options == spec.model.partition(":")[2] and (spec.input or model.input) == (
            item.input or model.input
        )
        if not (same and item.mode == spec.mode and item.metric in record.metrics and spec.batch in item.values):
            continue
        value, here = item.values[spec.batch], record.metrics[item.metric]
        found.append(
            {
                "metric": item.metric,
                "text": format_value(value, here.unit),
                "ratio": f"{here.value / value:.2g}",
                "where": f"{item.paper}: {item.device}, {item.engine}",
            }
        )
    return dict(model.papers), found


def _steps(spans: SpanTable) -> dict[str, Any] | None:
    """The distribution of the timed steps, and how they went over time."""
    times = spans.select(kind="step", name="timed").duration_s
    if not len(times):
        return None
    low, high = (float(edge) for edge in np.percentile(times, (0, 99.5 if len(times) >= 200 else 100)))
    high = high if high > low else low + max(low * 1e-3, 1e-9)
    counts, edges = np.histogram(times, bins=min(_BINS, max(8, len(times) // 4)), range=(low, high))
    width = -(-len(times) // _POINTS)
    parts = [times[begin : begin + width] for begin in range(0, len(times), width)]
    return {
        "counts": counts.tolist(),
        "edges": edges.tolist(),
        "beyond": int((times > high).sum()),
        "slowest": float(times.max()),
        "width": width,
        "median": [float(np.median(part)) for part in parts],
        "lowest": [float(part.min()) for part in parts],
        "highest": [float(part.max()) for part in parts],
    }


def _shares(spans: SpanTable | None, samples: Samples) -> dict[str, list[list[Any]]] | None:
    """The breakdown at each level; a share is the fields of a Share."""
    if spans is None:
        return None
    found = {level: [list(asdict(share).values()) for share in attribute(spans, samples, level)] for level in LEVELS}
    return found if found["phases"] else None


def several(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """Details by id; all timelines together are as large as one may be."""
    return {record.id: details(record, MOST_VALUES // len(records)) for record in records}
