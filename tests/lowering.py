"""Networks made ready for engines inside the test's own process, by the code that `ergo run` uses in others."""

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ergometer.analyze.proof import Proof
from ergometer.core import registry
from ergometer.core.spec import Spec
from ergometer.run import lower
from ergometer.run.prove import BATCH, STEPS, bounds_of, compared, rehearsed
from ergometer.store.bundle import open_graph

_FOLDERS: list[Path] = []


def job(spec: Spec, directory: Path, *, smooth: bool = False, steps: int = STEPS) -> lower.Job:
    graphs = [(spec.mode, spec.batch)]
    return lower.Job(
        {"spec": spec.to_json(), "directory": str(directory), "graphs": graphs, "smooth": smooth, "steps": steps}
    )


@cache
def captured(model: str, mode: str, smooth: bool, own_module: bool = False) -> Path:
    """The directory of a small network with its reference. own_module: for an engine that runs the torch module."""
    directory = Path(mkdtemp(prefix="ergo-test-"))
    _FOLDERS.append(directory)
    spec = rehearsed(Spec(model=model, engine="torch" if own_module else "mnn", mode=mode))
    lower.capture(job(spec, directory, smooth=smooth))
    return directory


def forget() -> None:
    """Remove what was captured."""
    captured.cache_clear()
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop())


def variant(engine: str, model: str, mode: str, tmp_path: Path, *, smooth: bool, device: str = "cpu") -> dict[str, Any]:
    """Build and rehearse the network on the engine, and compare."""
    spec = rehearsed(Spec(model=model, engine=engine, mode=mode, device=device))
    kind = registry.load("engines", engine)
    directory = tmp_path / ("smooth" if smooth else "actual")
    shutil.copytree(captured(model, mode, smooth, not kind.portable and not smooth), directory)
    work = job(spec, directory, smooth=smooth)
    if kind.portable:
        lower.build(work)
    lower.rehearse(work)
    name = "inference" if mode == "infer" else "smooth" if smooth else "actual"
    return compared(open_graph(directory, mode, BATCH)) | {"bounds": bounds_of(spec, kind())[name]}


def proof(engine: str, model: str, tmp_path: Path, device: str = "cpu") -> Proof:
    variants = {
        name: variant(engine, model, "train", tmp_path, smooth=name == "smooth", device=device)
        for name in ("smooth", "actual")
    }
    return Proof(engine=engine, versions={}, model=model, mode="train", variants=variants, made_at="")
