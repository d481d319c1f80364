"""A network made ready for one engine: a directory while it is used here, one .ergo file to carry it elsewhere.

    manifest.json         the model, the engine, the graphs, and every file with its size and SHA-256
    arrays/DIGEST.npy     parameters, buffers and constants, shared by the graphs
    train-4/graph.json    a graph for mode and batch size, beside the files that the engine made for it
    train-2/rehearsal.npz what three steps of it give in double precision, in a few sums of every tensor

Nothing in it is code, and only what the manifest lists is read.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.core.errors import StoreError, UsageError
from ergometer.core.graph import Graph, Lowered
from ergometer.core.model import Field, Model
from ergometer.store.home import write_json

# 2: rehearsals are drawn from core/random.py.
FORMAT = 2
SUFFIX = ".ergo"
SKETCH = "rehearsal.npz"


def is_bundle(model: str) -> bool:
    return model.endswith(SUFFIX)


class _Arrays(Mapping[str, Any]):
    """Read from their files when asked for: a device's memory must not hold them twice."""

    def __init__(self, folder: Path, digests: dict[str, str]):
        self._folder, self._digests = folder, digests

    def __getitem__(self, name: str) -> Any:
        path = self._folder / f"{self._digests[name]}.npy"
        try:
            return np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise StoreError(f"{path} is damaged ({error}): make the bundle again.") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._digests)

    def __len__(self) -> int:
        return len(self._digests)


def begin(directory: Path, engine: str, model: Model) -> None:
    """An empty bundle."""
    described = {
        "name": model.name,
        "title": model.title,
        "task": model.task,
        "input": model.input,
        "classes": model.classes,
        "fields": [asdict(item) for item in model.fields()],
        "feeds": model.feeds,
    }
    (directory / "arrays").mkdir(parents=True, exist_ok=True)
    write_json(directory / "manifest.json", {"format": FORMAT, "engine": engine, "model": described})


def add_graph(directory: Path, mode: str, batch: int, graph: Graph, arrays: dict[str, Any], counts: Any) -> Path:
    """Write one graph; its folder, for the engine's own files."""
    import hashlib  # megabytes that a measured process does not need

    folder = directory / f"{mode}-{batch}"
    folder.mkdir()
    digests = {}
    for name, array in arrays.items():
        digests[name] = hashlib.sha256(array.dtype.str.encode() + repr(array.shape).encode() + array.data).hexdigest()
        path = directory / "arrays" / f"{digests[name]}.npy"
        if not path.exists():
            np.save(path, array, allow_pickle=False)
    write_json(folder / "graph.json", {"graph": graph.to_json(), "arrays": digests, "counts": counts})
    return folder


def note(directory: Path, name: str, value: Any) -> None:
    """Write one more fact into the manifest."""
    write_json(directory / "manifest.json", manifest_of(directory) | {name: value})


def manifest_of(directory: Path) -> dict[str, Any]:
    return checked(_json(directory / "manifest.json"), directory)


def graphs_in(directory: Path) -> dict[tuple[str, int], Path]:
    """The folder of each mode and batch size."""
    found = {}
    for path in sorted(directory.glob("*-*/graph.json")):
        mode, _, batch = path.parent.name.rpartition("-")
        if batch.isdigit():
            found[mode, int(batch)] = path.parent
    return found


def open_graph(directory: Path, mode: str, batch: int) -> Lowered:
    """The graph for this mode and batch size; UsageError names those that there are."""
    found = graphs_in(directory)
    if (mode, batch) not in found:
        there = [str(size) for kind, size in found if kind == mode]
        remedy = f"choose --batch {','.join(there)}" if there else f"choose --mode {next(iter(found), ('', 0))[0]}"
        raise UsageError(f"the bundle holds nothing for --mode {mode} --batch {batch}: {remedy}, or make it anew.")
    folder = found[mode, batch]
    data = _json(folder / "graph.json")
    try:
        arrays = _Arrays(directory / "arrays", dict(data["arrays"]))
        return Lowered(graph=Graph.from_json(data["graph"]), arrays=arrays, folder=folder, counts=data["counts"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{folder / 'graph.json'} is damaged: make the bundle again.") from error


def model_in(directory: Path) -> Model:
    """The model as the bundle describes it: its fields and sizes, but no way to build it."""
    about = manifest_of(directory)["model"]
    fields = tuple(Field(item["name"], tuple(item["shape"]), item["high"]) for item in about["fields"])
    return Model(
        name=about["name"],
        title=about["title"],
        task=about["task"],
        input=tuple(about["input"]),
        classes=about["classes"],
        build=_not_here,
        layout=lambda *_, **__: fields,
        feeds=tuple(about["feeds"]) if about["feeds"] else None,
    )


def _not_here(*_: Any, **__: Any) -> Any:
    raise UsageError("a bundle holds a network for its own engine alone: run it with that.")


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} is missing or damaged: make the bundle again.") from error


def checked(manifest: Any, where: Path) -> dict[str, Any]:
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise StoreError(f"{where} is not a bundle of Ergometer.")
    if manifest["format"] != FORMAT:
        raise StoreError(
            f"{where} has bundle format {manifest['format']}, and this version reads {FORMAT}: make it again here."
        )
    about = manifest.get("model")
    if not isinstance(about, dict) or not {"name", "input", "classes", "fields", "feeds"} <= about.keys():
        raise StoreError(f"{where} is damaged: its manifest describes no model.")
    return manifest
