"""Writes docs/engine_matrix.md: every network on every engine that works here, from runs.

    python docs/matrix.py [MODEL ...]

First all pairs are proved, several at once; then each is run, alone. What was found is kept in
docs/engine_matrix.json, so that a run that is stopped goes on where it was; a pair is done again when the version
of its engine has changed. Small inputs and one thread: ratios to torch, not absolute times.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ergometer.core import registry
from ergometer.core.errors import ErgoError
from ergometer.core.quantity import format_shape, format_value
from ergometer.core.spec import Spec
from ergometer.run.environment import probe_of, versions_of
from ergometer.run.prove import BATCH, proof_of, rehearsed
from ergometer.store.home import write_json

FOLDER = Path(__file__).parent
RESULTS = FOLDER / "engine_matrix.json"
PAGE = FOLDER / "engine_matrix.md"
COMPILING = ("torch_compile", "tinygrad")  # last: they may take longer than we wait
ORDER = ("torch", "mnn", "litert", "ort", "tensorflow", "onnxruntime", "openvino", "ncnn", *COMPILING)
_LONGEST_S = int(os.environ.get("LONGEST", "600"))


def pairs(models: list[str]) -> Iterator[tuple[str, str, str]]:
    """Model, engine and mode: what trains is trained, the rest infers."""
    here = {name: kind for name, kind in registry.load_all("engines").items() if probe_of(name, "cpu").ok}
    for name in sorted(here, key=lambda name: ORDER.index(name) if name in ORDER else 0):
        modes = ("train", "infer") if name in ("torch", "torch_compile") else here[name].modes[:1]
        yield from ((model, name, mode) for mode in modes for model in models or by_size())


def by_size() -> list[str]:
    return sorted(registry.names("models"), key=lambda name: registry.load("models", name).parameters or 0)


def version_of(engine: str) -> str:
    return versions_of(engine, "cpu").get(engine, "")


def prove(model: str, mode: str, engines: list[str]) -> None:
    """One network on several engines; a line of JSON for each."""
    for engine in engines:
        found: dict[str, Any] = {}
        try:
            proof = proof_of(Spec(model=model, engine=engine, mode=mode))
            found = (
                {"refused": proof.reason} if proof.reason else {"gradient": proof.overall(next(iter(proof.variants)))}
            )
        except ErgoError as error:
            found = {"refused": str(error)}
        print(json.dumps({"key": f"{model} {engine} {mode}"} | found), flush=True)


def proved(model: str, mode: str, engines: list[str]) -> dict[str, Any]:
    """The same in a process of its own, which is stopped when it takes too long."""
    command = [sys.executable, __file__, "--prove", model, mode, *engines]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    found: dict[str, Any] = {}
    while True:
        clock = threading.Timer(_LONGEST_S, process.send_signal, (signal.SIGINT,))
        clock.start()
        line = process.stdout.readline()
        clock.cancel()
        if not line:
            break
        item = json.loads(line)
        found[item.pop("key")] = item
        print(line, end="", file=sys.stderr, flush=True)
    process.wait()
    why = {"refused": f"not proved in {_LONGEST_S} s here"}
    return {f"{model} {engine} {mode}": why for engine in engines} | found


def measured(model: str, engine: str, mode: str) -> dict[str, Any]:
    """A short run."""
    small = rehearsed(Spec(model=model, engine=engine, mode=mode))
    command = [sys.executable, "-m", "ergometer", "run", small.model, "--engine", engine, "--mode", mode, "--json", "-"]
    command += ["--batch", str(BATCH), "--threads", "1", "--time", "2s", "--trace-steps", "0"]
    command += ["--hang-timeout", f"{_LONGEST_S}s"]
    command += ["--input", format_shape(small.input)] if small.input and len(small.input) == 3 else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return {"refused": f"not finished in {_LONGEST_S} s here"}
    try:
        (record,) = json.loads(done.stdout)
    except ValueError:
        return {"refused": done.stderr.strip().splitlines()[-1]}
    if record["status"] != "ok":
        return {"refused": f"{record['status']}: {record['reason']}"}
    return {name: record["metrics"][name]["value"] for name in ("step_time", "first_step_time", "peak_memory")}


def fill(models: list[str]) -> None:
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}

    def keep(found: dict[str, Any]) -> None:
        for key, item in found.items():
            results[key] = {"version": version_of(key.split()[1]), **results.get(key, {}), **item}
        write_json(RESULTS, dict(sorted(results.items())))
        PAGE.write_text(page(results))

    wanted = [" ".join(pair) for pair in pairs(models)]
    for key in [key for key in wanted if key in results and results[key]["version"] != version_of(key.split()[1])]:
        del results[key]
    jobs: dict[tuple[str, str, str], list[str]] = {}
    for key in wanted:
        model, engine, mode = key.split()
        if engine != "torch" and not {"gradient", "refused"} & results.get(key, {}).keys():
            jobs.setdefault((model, mode, engine if engine in COMPILING else ""), []).append(engine)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in as_completed([pool.submit(proved, *job[:2], engines) for job, engines in jobs.items()]):
            keep(done.result())
    for key in wanted:
        if not {"step_time", "refused"} & results.get(key, {}).keys():
            keep({key: measured(*key.split())})
            print(key, results[key], file=sys.stderr, flush=True)


def page(results: dict[str, Any]) -> str:
    lines = [
        "# Engine matrix",
        "",
        "Made by `make matrix` from runs; do not edit. Small inputs, batch 4, one thread.",
        "A cell is: gradient error (relative, all gradients as one vector, smooth network, against double precision;",
        "for inference the error of the scores), step time and peak memory as a multiple of torch's. An error",
        "alone: proved, not measured. `-`: not run.",
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
    lines += ["", "## Refused or not measured, and why", ""]
    lines += [f"{number}. {note}" for number, note in enumerate(notes, 1)]
    return "\n".join(lines) + "\n"


def _cell(results: dict[str, Any], model: str, engine: str, mode: str, notes: list[str]) -> str:
    found, base = results.get(f"{model} {engine} {mode}"), results.get(f"{model} torch {mode}", {})
    if found is None:
        return "-"
    if "refused" in found:
        if found["refused"] not in notes:
            notes.append(found["refused"])
        number = notes.index(found["refused"]) + 1
        return f"{found['gradient']:.0e}, not measured ({number})" if "gradient" in found else f"no ({number})"
    if engine == "torch":
        return f"{format_value(found['step_time'], 's')}, {format_value(found['peak_memory'], 'B')}"
    if "step_time" not in base or "step_time" not in found:
        return f"{found['gradient']:.0e}"
    times, memory = (found[name] / base[name] for name in ("step_time", "peak_memory"))
    return f"{found['gradient']:.0e}, {times:.2f}x, {memory:.2f}x"


if __name__ == "__main__":
    os.environ.setdefault("ERGO_HOME", str(Path.home() / ".cache" / "ergometer-matrix"))
    if sys.argv[1:2] == ["--prove"]:
        prove(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        fill(sys.argv[1:])
