"""TensorFlow itself, imported once and without its messages."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def tensorflow() -> Any:
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        with _quiet():
            import_module("tensorflow").get_logger().setLevel("ERROR")
    return sys.modules["tensorflow"]


@contextmanager
def _quiet() -> Iterator[None]:
    """No standard error: what TensorFlow says while it is imported heeds no level (its issue 100442)."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
