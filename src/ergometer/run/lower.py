"""Steps of making a network ready for an engine, each in a process of its own, alone with its framework.

    python -m ergometer.run.lower STEP JOB...

STEP is `capture` (needs torch), `build` or `rehearse` (need the engine). JOB is a JSON object: spec, directory,
graphs (pairs of mode and batch), smooth, and steps (of the rehearsal; 0 for none). Prints an object: its error.
"""

import json
import sys
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.errors import ErgoError, UnavailableError
from ergometer.core.graph import Graph
from ergometer.core.model import Model
from ergometer.core.random import Random
from ergometer.core.spec import Spec
from ergometer.engines._portable import draw_masks
from ergometer.run.resolve import resolve
from ergometer.store.bundle import add_graph, begin, model_in, open_graph

REFERENCE, FOUND = "reference.npz", "found.npz"


class Job:
    def __init__(self, data: dict[str, Any]):
        self.spec = Spec.from_json(data["spec"])
        self.directory = Path(data["directory"])
        self.graphs: list[tuple[str, int]] = [(mode, batch) for mode, batch in data["graphs"]]
        self.smooth: bool = data["smooth"]
        self.steps: int = data["steps"]
        self.engine = registry.load("engines", self.spec.engine)()
        self.own_module = not (self.engine.portable or self.smooth)

    def batch(self, model: Model, size: int) -> list[Any]:
        request = Request(fields=model.fields(), batch=size, seed=self.spec.seed, folder=None)
        return list(registry.load("data", "synthetic").open(request).batch())

    def masks(self, graph: Graph) -> list[dict[str, Any]]:
        """Of every step of the rehearsal, the same in every process."""
        random = Random(self.spec.seed)
        steps = [draw_masks(graph, random) for _ in range(self.steps)]
        if self.own_module:  # it draws its own masks: rehearsed without
            steps = [{name: np.ones_like(mask) for name, mask in masks.items()} for masks in steps]
        return steps


def capture(job: Job) -> None:
    """The canonical graph of every mode and batch; for a rehearsal, what it must give in double precision."""
    torch = registry.load("engines", "torch")()
    probe = torch.probe("cpu")
    if not probe.ok:
        raise UnavailableError(
            f"{job.spec.model} is written in torch, which is not installed: {probe.remedy}, or make a bundle where it "
            f"is (ergo bundle {job.spec.model} --engine {job.spec.engine} -o model.ergo) and run that here."
        )
    model = resolve(job.spec)
    begin(job.directory, job.spec.engine, model)
    for mode, size in job.graphs:
        batch = job.batch(model, size)
        torch.load(replace(job.spec, mode=mode, batch=size, device="cpu", options=job.spec.source), model, batch)
        graph, arrays = torch.capture()
        if job.smooth:
            graph = graph.smooth()
        counts = {} if job.steps else asdict(torch.counts())
        folder = add_graph(job.directory, mode, size, graph, arrays, counts)
        if job.steps:
            names = [item.name for item in model.fields()]
            true = torch.reference(graph, arrays, dict(zip(names, batch, strict=True)), job.masks(graph))
            save_steps(folder / REFERENCE, true)


def build(job: Job) -> None:
    """The engine's own files, beside every graph."""
    job.engine.prepare()
    options = {name: value for name, value in job.spec.options.items() if name in job.engine.options}
    for mode, size in job.graphs:
        lowered = open_graph(job.directory, mode, size)
        job.engine.build(lowered.graph, dict(lowered.arrays), lowered.folder, **options)


def rehearse(job: Job) -> None:
    """Some steps of every graph, and what they gave."""
    job.engine.prepare()
    for mode, size in job.graphs:
        lowered = open_graph(job.directory, mode, size)
        model = resolve(job.spec) if job.own_module else replace(model_in(job.directory), lowered=lowered)
        job.engine.load(replace(job.spec, mode=mode, batch=size), model, job.batch(model, size))
        found = [job.engine.rehearse(masks) for masks in job.masks(lowered.graph)]
        save_steps(lowered.folder / FOUND, found if mode == "train" else found[:1])


def save_steps(path: Path, steps: list[dict[str, Any]]) -> None:
    """In single precision: its rounding is far below every bound, and large networks are large."""
    flat = {f"{number}/{name}": array for number, step in enumerate(steps) for name, array in step.items()}
    single: dict[str, Any] = {name: np.asarray(array, dtype=np.float32) for name, array in flat.items()}
    np.savez(path, **single)


def load_steps(path: Path) -> list[dict[str, Any]]:
    """What a rehearsal gave, step by step."""
    with np.load(path, allow_pickle=False) as file:
        steps: dict[int, dict[str, Any]] = {}
        for key in file.files:
            number, _, name = key.partition("/")
            steps.setdefault(int(number), {})[name] = file[key]
    return [steps[number] for number in sorted(steps)]


def main() -> None:
    step = {"capture": capture, "build": build, "rehearse": rehearse}[sys.argv[1]]
    outcome = {"error": "", "exit": 0}
    try:
        for text in sys.argv[2:]:
            step(Job(json.loads(text)))
    except ErgoError as error:
        outcome = {"error": str(error), "exit": error.exit_code}
    except Exception as error:  # noqa: BLE001 - a framework may raise anything; the log has the trace
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        outcome = {"error": f"{type(error).__name__}: {first}", "exit": 1}
    print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
