"""Records and other results for machines: written whole or not at all, and read back."""

import gzip
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from ergometer.core.errors import StoreError, UsageError
from ergometer.core.record import Record


def check_destination(destination: str | None, option: str = "--json") -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if destination is None or destination == "-":
        return
    path = Path(destination)
    folder = path.resolve().parent
    if not destination or path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {destination!r} cannot be written: name a file in a directory that can, or -.")


def write_records(
    records: Sequence[Record], destination: str, option: str = "--json", more: Mapping[str, Any] | None = None
) -> None:
    """A JSON list of Records (each with what more there is) to a file, or to standard output for '-'."""
    write_json([{**record.to_json(), **(more or {})} for record in records], destination, option)


def write_json(value: Any, destination: str, option: str = "--json") -> None:
    write_pieces([json.dumps(value, indent=1) + "\n"], destination, option)


def write_pieces(pieces: Iterable[str], destination: str, option: str) -> None:
    """Text to a file in one step, compressed if its name ends in .gz, or to standard output for '-'."""
    if destination == "-":
        sys.stdout.writelines(pieces)
        return
    with placed(destination, option) as path:
        open_ = gzip.open if destination.endswith(".gz") else open
        with open_(path, "wt", encoding="utf-8") as file:
            file.writelines(pieces)


@contextmanager
def placed(destination: str, option: str) -> Iterator[Path]:
    """Where to write: beside the destination, and moved there when all is written. A pipe or a device is written to."""
    path = Path(destination).resolve()
    special = path.exists() and not path.is_file()
    temporary = path if special else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        if temporary != path:
            temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{option} {destination!r} cannot be written ({(error.strerror or '').lower()}).") from error
    finally:
        if temporary != path:
            temporary.unlink(missing_ok=True)


def read_records(file: str) -> list[Record]:
    """The records of a JSON file that `write_records` wrote."""
    try:
        with (gzip.open if file.endswith(".gz") else open)(file, "rt", encoding="utf-8") as stream:
            data = json.load(stream)
    except (ValueError, EOFError) as error:
        raise StoreError(f"{file} is not JSON of `ergo export`, or was cut short: write it again.") from error
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({(error.strerror or str(error)).lower()}): check the path."
        ) from error
    if not isinstance(data, list):
        raise StoreError(f"{file} holds no list of records: write it with `ergo export --format json`.")
    records = []
    for number, item in enumerate(data, 1):
        try:
            records.append(_checked(item))
        except StoreError as error:
            raise StoreError(f"{file}, record {number}: {error}") from error
    return records


def _checked(item: Any) -> Record:
    """The record, if it can do no harm here: its id names a directory, and its metrics are numbers."""
    if not isinstance(item, dict):
        raise StoreError("this is not a record of ergometer.")
    known = {field.name for field in fields(Record)} | {"format", "spec_id"}
    record = Record.from_json({name: value for name, value in item.items() if name in known})
    if not re.fullmatch(r"\w[\w-]*", record.id):
        raise StoreError(f"{record.id!r} is no id of a run.")
    for name, metric in record.metrics.items():
        for value in (metric.value, metric.low, metric.high):
            if value is not None and not isinstance(value, int | float):
                raise StoreError(f"{name} is {value!r}, not a number.")
    if record.status == "running":
        raise StoreError(f"run {record.id} was still running when it was written: write it again.")
    return record
