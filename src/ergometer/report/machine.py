"""Records for machines."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ergometer.core.record import Record
from ergometer.store.home import write_json


def write_records(records: Sequence[Record], destination: str) -> None:
    """A JSON list of Records to a file, or to standard output for '-'."""
    values = [record.to_json() for record in records]
    if destination == "-":
        json.dump(values, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        write_json(Path(destination), values)
