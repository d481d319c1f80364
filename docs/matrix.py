"""Writes docs/engine_matrix.md: every network on every engine that works here, from runs.

    python docs/matrix.py [MODEL ...]

What was found is kept in docs/engine_matrix.json, so that a run that is stopped goes on where it was; a pair is run
again when the version of its engine has changed. Small inputs and one thread: ratios to torch, not absolute times.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ergometer.core import registry
from ergometer.core.errors import ErgoError
from ergometer.core.quantity import format_shape
from ergometer.core.spec import Spec
from ergometer.run.environment import probe_of, versions_of
from ergometer.run.prove import BATCH, proof_of, rehearsed
from ergometer.store.home import write_json

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "engine_matrix.json"
PAGE = FOLDER / "engine_matrix.md"
_LONGEST_S = 900


def engines() -> dict[str, Any]:
    found = registry.load_all("engines")
    return {name: kind for name, kind in found.items() if probe_of(name, "cpu").ok}


def pairs(models: list[str]) -> Iterator[tuple[str, str]]:
    """torch first, because the others are compared with it."""
    names = sorted(engines(), key=lambda name: (name != "torch", name))
    for model in models or registry.names("models"):
        for engine in names:
            yield model, engine


def measured(model: str, engine: str, mode: str) -> dict[str, Any]:
    """One pair: its proof, then a short run."""
    spec = Spec(model=model, engine=engine, mode=mode)
    shape = rehearsed(spec).input
    found: dict[str, Any] = {"version": versions_of(engine, "cpu").get(engine, ""), "mode": mode}
    if engine != "torch":
        try:
            proof = proof_of(spec)
        except ErgoError as error:
            return found | {"refused": str(error)}
        if proof.reason:
            return found | {"refused": proof.reason}
        found |= {"gradient": proof.overall(next(iter(proof.variants)))}
    command = [sys.executable, "-m", "ergometer", "run", model, "--engine", engine, "--mode", mode, "--json", "-"]
    command += ["--batch", str(BATCH), "--threads", "1", "--time", "4s", "--trace-steps", "0"]
    command += ["--input", format_shape(shape)] if shape and len(shape) == 3 else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    try:
        (record,) = json.loads(done.stdout)
    except ValueError:
        return found | {"refused": done.stderr.strip().splitlines()[-1]}
    if record["status"] != "ok":
        return found | {"refused": f"{record['status']}: {record['reason']}"}
    return found | {name: record["metrics"][name]["value"] for name in ("step_time", "first_step_time", "peak_memory")}


def fill(models: list[str]) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for model, engine in pairs(models):
        modes = ("train", "infer") if engine in ("torch", "torch_compile") else engines()[engine].modes[:1]
        for mode in modes:
            key = f"{model} {engine} {mode}"
            if key in results and results[key]["version"] == versions_of(engine, "cpu").get(engine, ""):
                continue
            try:
                results[key] = measured(model, engine, mode)
            except subprocess.TimeoutExpired:
                results[key] = {"version": "", "mode": mode, "refused": f"not finished in {_LONGEST_S} s here"}
            print(key, results[key], file=sys.stderr, flush=True)
            write_json(RESULTS, dict(sorted(results.items())))
    return results


def page(results: dict[str, Any]) -> str:
    lines = [
        "# Engine matrix",
        "",
        "Made by `make matrix` from runs; do not edit. Small inputs, batch 4, one thread.",
        "A cell is: gradient error (relative, all gradients as one vector, smooth network, against double precision;",
        "for inference the error of the scores), step time and peak memory as a multiple of torch's. `-`: not run.",
    ]
    notes: list[str] = []
    for mode, title in (("train", "Training"), ("infer", "Inference")):
        columns = [
            name for name in registry.names("engines") if any(key.endswith(f" {name} {mode}") for key in results)
        ]
        lines += ["", f"## {title}", "", f"| network | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
        for model in registry.names("models"):
            cells = [_cell(results, model, name, mode, notes) for name in columns]
            lines.append(f"| `{model}` | {' | '.join(cells)} |")
    versions = {key.split()[1]: item["version"] for key, item in results.items() if item.get("version")}
    lines += ["", f"Versions: {', '.join(f'{name} {version}' for name, version in sorted(versions.items()))}."]
    lines += ["", "## Refused, and why", ""]
    lines += [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(lines) + "\n"


def _cell(results: dict[str, Any], model: str, engine: str, mode: str, notes: list[str]) -> str:
    found, base = results.get(f"{model} {engine} {mode}"), results.get(f"{model} torch {mode}", {})
    if found is None:
        return "-"
    if "refused" in found:
        if found["refused"] not in notes:
            notes.append(found["refused"])
        return f"no ({notes.index(found['refused']) + 1})"
    if engine == "torch":
        return f"{found['step_time'] * 1e3:.1f} ms, {found['peak_memory'] / 1e6:.0f} MB"
    if "step_time" not in base:
        return f"{found['gradient']:.0e}"
    times, memory = (found[name] / base[name] for name in ("step_time", "peak_memory"))
    return f"{found['gradient']:.0e}, {times:.2f}x, {memory:.2f}x"


if __name__ == "__main__":
    os.environ.setdefault("ERGO_HOME", str(Path.home() / ".cache" / "ergometer-matrix"))
    PAGE.write_text(page(fill(sys.argv[1:])))
