"""Two sets of records side by side: the verdict on each metric, and what else is different between them."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ergometer.analyze.compare import ENOUGH_RUNS, Comparison, compare
from ergometer.analyze.metrics import have_moved
from ergometer.core.errors import ErgoError, StoreError, UsageError
from ergometer.core.quantity import parse_percent
from ergometer.core.record import Record
from ergometer.store.spans import SpanTable

METRICS = ("step_time", "energy_per_step", "peak_memory")
_HIGHER_IS_FASTER = ("throughput",)
_LIMITS = {"slower": 1, "faster": -1, "more": 1, "less": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A metric on both sides; found is None where there is a single value on a side and nothing can be judged."""

    metric: str
    unit: str
    first: float
    second: float
    found: Comparison | None
    estimated: bool = False

    @property
    def words(self) -> str:
        if self.found is None:
            return "one value each"
        if not self.found.differs:
            return "no difference"
        more = self.found.ratio > 1
        if self.metric in _HIGHER_IS_FASTER:
            return "faster" if more else "slower"
        if self.metric.endswith("_time"):
            return "slower" if more else "faster"
        return "more" if more else "less"


def rows(first: Sequence[Record], second: Sequence[Record], metrics: Sequence[str]) -> list[Row]:
    """The metrics, asked for by name or those of METRICS that both sides have."""
    found = []
    for name in metrics or METRICS:
        sides = [[record for record in side if name in record.metrics] for side in (first, second)]
        if all(sides):
            found.append(_row(name, *sides))
        elif metrics:
            lacking = next(record for side in (first, second) for record in side if name not in record.metrics)
            why = lacking.absent.get(name) or "it was not measured"
            raise UsageError(f"run {lacking.id} has no {name}: {why}.")
    if not found:
        raise ErgoError("these runs have no metric in common: compare runs that ended ok.")
    return found


def _row(name: str, first: Sequence[Record], second: Sequence[Record]) -> Row:
    values = [[_values(record, name) for record in side] for side in (first, second)]
    judged = all(len(side) >= ENOUGH_RUNS or max(map(len, side)) > 1 for side in values)
    found = compare(*values) if judged else None
    middles = [sorted(record.metrics[name].value for record in side)[len(side) // 2] for side in (first, second)]
    a, b = (found.first, found.second) if found else middles
    estimated = any(record.metrics[name].source == "estimated" for record in (*first, *second))
    return Row(metric=name, unit=first[0].metrics[name].unit, first=a, second=b, found=found, estimated=estimated)


def _values(record: Record, name: str) -> list[float]:
    """Every timed step, where the metric is one of steps and the run's details are here; otherwise its one value."""
    if name in ("step_time", "throughput"):
        try:
            spans = SpanTable.load(Path(record.directory) / "spans.npz").select(kind="step", name="timed")
        except StoreError:
            spans = None
        if spans is not None and len(spans):
            times = spans.duration_s
            return [float(time if name == "step_time" else record.spec.batch / time) for time in times]
    return [record.metrics[name].value]


def as_json(found: Sequence[Row]) -> list[dict[str, Any]]:
    return [asdict(row) | {"verdict": row.words} for row in found]


def remarks(first: Sequence[Record], second: Sequence[Record]) -> list[str]:
    """What differs beside what was asked, and what makes the verdict weak."""
    found = []
    for what, of in (("processors", _processor), ("governors", _governor), ("versions", _versions)):
        sides = [sorted({of(record) for record in side}) for side in (first, second)]
        if sides[0] != sides[1]:
            found.append(f"different {what}: {'; '.join(sides[0])} against {'; '.join(sides[1])}")
    a, b = (_handover_s(side) for side in (first, second))
    if a and b and have_moved(a, b):
        found.append(
            f"from one core to another and back took {a * 1e9:.0f} ns against {b * 1e9:.0f} ns: steps of several "
            "threads depend on it, and the host of a virtual machine moves its cores"
        )
    for letter, side in (("A", first), ("B", second)):
        unstable = [record for record in side if any(text.startswith("unstable") for text in record.warnings)]
        if unstable:
            found.append(
                f"{letter}: {len(unstable)} of {len(side)} runs unstable (`ergo show {unstable[0].id}` says why)"
            )
    fewest = min(len(first), len(second))
    if fewest < ENOUGH_RUNS:
        found.append(
            f"fewer than {ENOUGH_RUNS} runs on a side: by how much runs of the same spec differ is not known; "
            "what is said holds for these runs alone (ergo run --repeat 5 makes more)"
        )
    return found


def differing(first: Sequence[Record], second: Sequence[Record]) -> dict[str, tuple[str, str]]:
    """The fields of the specs that are not the same on both sides."""
    found = {}
    sides = [[record.spec.to_json() for record in side] for side in (first, second)]
    for name in sides[0][0]:
        a, b = (sorted({str(spec[name]) for spec in side}) for side in sides)
        if a != b and name != "format":
            found[name] = ("|".join(a), "|".join(b))
    return found


def _handover_s(side: Sequence[Record]) -> float | None:
    known = [record.metrics["handover_time"].value for record in side if "handover_time" in record.metrics]
    return statistics.median(known) if known else None


def _processor(record: Record) -> str:
    return f"{record.host.get('processor')} ({record.host.get('name')})"


def _governor(record: Record) -> str:
    return str(record.host.get("governor") or record.host.get("governors") or "unknown")


def _versions(record: Record) -> str:
    versions: dict[str, Any] = record.host.get("versions", {})
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))


class Limit:
    """`slower:5%`: what must not be found."""

    def __init__(self, text: str):
        self.word, _, amount = text.partition(":")
        if self.word not in _LIMITS or not amount:
            raise UsageError(f"--fail-if {text!r} is no limit: write slower:5%, faster:5%, more:10% or less:10%.")
        self.share = parse_percent(amount)

    def broken_by(self, row: Row) -> bool:
        """A difference by that word, and by more than that share."""
        if row.found is None or row.words != self.word:
            return False
        ratio = row.found.ratio
        return max(ratio, 1 / ratio) > 1 + self.share
