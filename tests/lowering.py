"""Networks made ready for engines inside the test's own process, by the code that `ergo run` uses in others."""

import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ergometer.analyze.proof import Proof, wrong_in
from ergometer.core import registry
from ergometer.core.spec import Spec
from ergometer.run import lower, lowering
from ergometer.run.prove import BATCH, SEEDS, STEPS, bounds_of, compared, judged, rehearsed
from ergometer.store.bundle import open_graph

_FOLDERS: list[Path] = []


def job(spec: Spec, directory: Path, *, smooth: bool = False, steps: int = STEPS) -> lower.Job:
    return lower.Job(lowering.job(spec, directory, [(spec.mode, spec.batch)], smooth=smooth, steps=steps))


@cache
def captured(model: str, mode: str, smooth: bool, own_module: bool = False, seed: int = 0) -> Path:
    """The directory of a small network with its reference. own_module: for an engine that runs the torch module."""
    directory = Path(mkdtemp(prefix="ergo-test-"))
    _FOLDERS.append(directory)
    spec = rehearsed(Spec(model=model, engine="torch" if own_module else "mnn", mode=mode, seed=seed))
    lower.capture(job(spec, directory, smooth=smooth))
    return directory


def forget() -> None:
    """Remove what was captured."""
    captured.cache_clear()
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop())


def variant(
    engine: str,
    model: str,
    mode: str,
    folder: Path,
    *,
    smooth: bool,
    device: str = "cpu",
    seed: int = 0,
    **options: str,
) -> dict[str, Any]:
    """Build and rehearse the network on the engine, and compare."""
    spec = rehearsed(Spec(model=model, engine=engine, mode=mode, device=device, seed=seed, options=options))
    kind = registry.load("engines", engine)
    name = "inference" if mode == "infer" else "smooth" if smooth else "actual"
    directory = folder / f"{name}-{seed}"
    made = captured(model, mode, smooth, not kind.portable and not smooth, seed)
    shutil.copytree(made, directory, copy_function=os.link)
    work = job(spec, directory, smooth=smooth)
    if kind.portable:
        lower.build(work)
    lower.rehearse(work)
    found = compared(open_graph(directory, mode, BATCH))
    shutil.rmtree(directory)
    return found | {"bounds": bounds_of(spec, kind())[name], "steps": judged(name)}


def proof(engine: str, model: str, folder: Path, device: str = "cpu", **options: str) -> Proof:
    """As `ergo verify` does it: with another seed where one fails."""
    variants = {}
    for name in ("smooth", "actual"):
        for seed in SEEDS:
            smooth = name == "smooth"
            variants[name] = variant(engine, model, "train", folder, smooth=smooth, device=device, seed=seed, **options)
            if not wrong_in(variants[name]):
                break
    return Proof(engine=engine, versions={}, model=model, mode="train", variants=variants, made_at="")
