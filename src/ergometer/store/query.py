"""Which records: `model=lenet,batch=1|2,engine=torch`, and the records that were found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from ergometer.core import registry
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.record import Record
from ergometer.core.spec import Spec

# Of a record itself, then of its spec; any other name is an option of the model's or the engine's.
_OWN = ("id", "spec_id", "status", "started_at", "host")
_SPEC = tuple(item.name for item in fields(Spec) if item.name not in ("budget", "options"))
# That the database can filter by. Not the status: a run whose process was killed is found out when it is read.
COLUMNS = ("id", "spec_id", "model", "engine", "mode", "batch")


@dataclass(frozen=True, slots=True)
class Query:
    """Every condition must hold: the value of a field is one of these, in which * stands for any text."""

    conditions: Mapping[str, tuple[str, ...]]

    @classmethod
    def parse(cls, text: str) -> "Query":
        """`field=value,field=value|value`. A model's own options may follow it: model=conv_only:width=64,depth=4."""
        found: dict[str, str] = {}
        last = ""
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = part.partition("=")
            if last == "model" and ":" in found["model"] and name not in (*_OWN, *_SPEC):
                found["model"] += f",{part}"
                continue
            if not equals or not value:
                raise UsageError(f"{part!r} is no condition: write field=value, such as model=lenet,batch=16.")
            if name not in (*_OWN, *_SPEC) and name not in _options():
                raise UsageError(registry.unknown("field", name, (*_OWN, *_SPEC)))
            last, found[name] = name, value
        return cls({name: tuple(value.split("|")) for name, value in found.items()})

    def holds(self, record: Record) -> bool:
        return all(
            any(fnmatchcase(_text(record, name), value) for value in values) for name, values in self.conditions.items()
        )

    def exact(self) -> dict[str, tuple[str, ...]]:
        """The conditions that a database can check."""
        return {
            name: values
            for name, values in self.conditions.items()
            if name in COLUMNS and not any(mark in value for value in values for mark in "*?[")
        }


def _options() -> set[str]:
    return {name for engine in registry.load_all("engines").values() for name in engine.options}


def _text(record: Record, name: str) -> str:
    if name == "host":
        return str(record.host.get("name", ""))
    if name in _OWN:
        return str(record.spec.id if name == "spec_id" else getattr(record, name))
    if name in _SPEC:
        return str(_plain(record.spec, name))
    return record.spec.options.get(name, "")


class Records(list[Record]):
    """What a query found, oldest first."""

    def rows(self) -> list[dict[str, Any]]:
        """A flat row for each: what decided the run, how it ended, and every metric with its interval and unit."""
        return [_row(record) for record in self]

    def to_dataframe(self) -> Any:
        """A data frame of pandas, or of polars where only that is installed."""
        rows = self.rows()
        columns = {name: [row.get(name) for row in rows] for name in columns_of(rows)}
        for package in ("pandas", "polars"):
            try:
                module = __import__(package)
            except ImportError:
                continue
            return module.DataFrame(columns)
        raise UnavailableError("a data frame needs pandas or polars: pip install pandas.")


def columns_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Every name that a row has, in the order in which they come up."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _row(record: Record) -> dict[str, Any]:
    spec = record.spec
    row: dict[str, Any] = {"id": record.id, "started_at": record.started_at, "status": record.status}
    row |= {"reason": record.reason, "spec_id": spec.id, "warnings": "; ".join(record.warnings)}
    row |= {"processor": record.host.get("processor"), "cores_here": record.host.get("cores")}
    row |= {name: _plain(spec, name) for name in _SPEC}
    row |= {f"option.{name}": value for name, value in spec.options.items()}
    for name, metric in record.metrics.items():
        row[name] = metric.value
        row |= {f"{name}.{part}": getattr(metric, part) for part in ("unit", "low", "high", "n", "source")}
    return row


def _plain(spec: Spec, name: str) -> Any:
    """A field as a user writes it: 3x32x32, or 0+2 for several."""
    value = getattr(spec, name)
    return ("x" if name == "input" else "+").join(map(str, value)) if isinstance(value, tuple) else value
