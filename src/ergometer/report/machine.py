"""Records for machines."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ergometer.core.errors import UsageError
from ergometer.core.record import Record


def check_destination(destination: str | None) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    if destination is None or destination == "-":
        return
    path = Path(destination)
    folder = path.resolve().parent
    if not destination or path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--json {destination!r} cannot be written: name a file in a directory that can, or -.")


def write_records(records: Sequence[Record], destination: str, **more: Any) -> None:
    """A JSON list of Records (each with what more there is) to a file, or to standard output for '-'."""
    write_json([record.to_json() | more for record in records], destination)


def write_json(value: Any, destination: str) -> None:
    """JSON to a file in one step, or to standard output for '-'."""
    text = json.dumps(value, indent=1) + "\n"
    if destination == "-":
        sys.stdout.write(text)
        return
    path = Path(destination).resolve()
    try:
        if path.exists() and not path.is_file():
            path.write_text(text)  # a pipe or a device: written, not replaced
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"--json {destination!r} cannot be written ({(error.strerror or '').lower()}).") from error
