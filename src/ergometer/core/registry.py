"""Plug-ins: a file in a plural folder, or an entry point of the same group, is a plug-in by its name."""

from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ergometer.core.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ATTRIBUTE = {"models": "MODEL", "engines": "ENGINE", "sensors": "SENSOR", "data": "DATASET"}


def _outside(kind: str) -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points  # megabytes that a measured process does not need

    return {point.name: point for point in entry_points(group=f"ergometer.{kind}")}


def names(kind: str) -> list[str]:
    """Names of every plug-in of a kind, sorted."""
    return sorted(_inside(kind) | set(_outside(kind)))


def _inside(kind: str) -> set[str]:
    folder = Path(__file__).parent.parent / kind
    found = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    return {name for name in found if not name.startswith("_")}


def load(kind: str, name: str) -> Any:
    """The plug-in object of that name; UsageError with the nearest names if there is none."""
    ours = name in _inside(kind)
    outside = None if ours else _outside(kind).get(name)
    if not ours and outside is None:
        raise UsageError(unknown(kind.removesuffix("s"), name, names(kind)))
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
    import difflib

    options = list(known)
    near = difflib.get_close_matches(name, options, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(options)}."
    return f"unknown {what} {name!r}: {hint}"
