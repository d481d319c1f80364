"""Records as a table for other programs: CSV, Markdown, Parquet."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ergometer.core.errors import UnavailableError
from ergometer.core.quantity import format_value
from ergometer.store.query import columns_of

_SHORT = ("id", "status", "model", "engine", "mode", "batch", "step_time", "throughput", "peak_memory")


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, columns_of(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The columns that are read most: all of them would not fit a page."""
    names = [name for name in _SHORT if any(row.get(name) not in (None, "") for row in rows)]
    lines = [f"| {' | '.join(names)} |", f"| {' | '.join('---' for _ in names)} |"]
    lines += [f"| {' | '.join(_cell(row, name) for name in names)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if f"{name}.unit" in row:
        return format_value(row[name], row[f"{name}.unit"])
    if name == "status" and "unstable" in row["warnings"]:
        return f"{value} (unstable)"
    text = "" if value is None else str(value)
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def write_parquet(rows: Sequence[dict[str, Any]], path: Path) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UnavailableError("Parquet needs pyarrow: pip install 'ergometer[parquet]'.") from error
    names = columns_of(rows)
    pyarrow.parquet.write_table(pyarrow.table({name: _column(rows, name) for name in names}), path)


def _column(rows: Sequence[dict[str, Any]], name: str) -> list[Any]:
    """One type for the whole column, as Parquet wants it."""
    values = [row.get(name) for row in rows]
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) > 1:
        return [None if value is None else float(value) for value in values]
    return values if len(kinds) <= 1 else [None if value is None else str(value) for value in values]
