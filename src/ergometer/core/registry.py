"""Plug-ins: a file in a plural folder, or an entry point of the same group, is a plug-in by its name."""

import difflib
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from ergometer.core.errors import UnavailableError, UsageError

ATTRIBUTE = {"models": "MODEL", "engines": "ENGINE", "sensors": "SENSOR", "data": "DATASET"}


def _outside(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"ergometer.{kind}")}


def names(kind: str) -> list[str]:
    """Names of every plug-in of a kind, sorted."""
    folder = Path(__file__).parent.parent / kind
    inside = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    inside = {name for name in inside if not name.startswith("_")}
    return sorted(inside | set(_outside(kind)))


def load(kind: str, name: str) -> Any:
    """The plug-in object of that name; UsageError with the nearest names if there is none."""
    if name not in names(kind):
        raise UsageError(unknown(kind.removesuffix("s"), name, names(kind)))
    outside = _outside(kind).get(name)
    try:
        if outside is not None:
            return outside.load()
        return getattr(import_module(f"ergometer.{kind}.{name}"), ATTRIBUTE[kind])
    except (ImportError, AttributeError) as error:
        raise UnavailableError(f"{kind.removesuffix('s')} {name!r} does not load: {error}") from error


def load_all(kind: str) -> dict[str, Any]:
    return {name: load(kind, name) for name in names(kind)}


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist, with the nearest ones that do."""
    options = list(known)
    near = difflib.get_close_matches(name, options, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(options)}."
    return f"unknown {what} {name!r}: {hint}"
