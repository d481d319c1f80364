"""A network made ready for an engine that runs canonical graphs: built once, then taken from the cache."""

import hashlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ergometer.core.errors import ErgoError, UnavailableError, UsageError
from ergometer.core.process import CpuTime, Processes
from ergometer.core.spec import Spec
from ergometer.run.environment import python_of, versions_of
from ergometer.run.interrupt import Interrupt
from ergometer.store.bundle import FORMAT, is_bundle
from ergometer.store.bundle_file import cached, unpack

LONGEST_S = 1800.0  # of one step: compiling takes minutes
_IDLE_S = 120.0  # of one step, without using a core: a driver hangs
_LOOKS, _IDLE = 20, 0.01  # in that time, since a compiler that has ended in between is not seen; and of a core
_ERRORS = {2: UsageError, 3: UnavailableError}


class StoppedError(ErgoError):
    """The user stopped it."""

    exit_code = 130


def ready(spec: Spec, interrupt: Interrupt | None = None) -> Path:
    """The directory with this spec's network, made if it is not in the cache."""
    if is_bundle(spec.model):
        return unpack(Path(spec.model))
    facts = {
        "format": FORMAT,
        "model": [spec.model, spec.input, spec.classes, spec.options, spec.seed],
        "graph": [spec.mode, spec.batch],
        "engine": [spec.engine, versions_of(spec.engine, spec.device)],
        "torch": _version("torch"),
        "ergometer": _version("ergometer"),
    }
    return cached(make_key(facts), lambda directory: make(spec, directory, [(spec.mode, spec.batch)], interrupt))


def make(spec: Spec, directory: Path, graphs: Sequence[tuple[str, int]], interrupt: Interrupt | None = None) -> None:
    """Write a bundle of these modes and batch sizes into the directory."""
    for step in ("capture", "build"):
        run_step(step, [job(spec, directory, graphs)], interrupt)


def job(spec: Spec, directory: Path, graphs: Sequence[tuple[str, int]], *, smooth: bool = False, steps: int = 0) -> Any:
    """What ergometer.run.lower is to do."""
    facts = {"spec": spec.to_json(), "directory": str(directory), "graphs": list(graphs)}
    return facts | {"smooth": smooth, "steps": steps}


def run_step(step: str, jobs: Sequence[Any], interrupt: Interrupt | None = None) -> None:
    """Do one step of the jobs, all of one engine, in a process; its error becomes ours."""
    spec, directory = Spec.from_json(jobs[0]["spec"]), Path(jobs[0]["directory"])
    python = sys.executable if step == "capture" else python_of(spec.engine)
    command = [python, "-m", "ergometer.run.lower", step, *map(json.dumps, jobs)]
    log = directory / f"{step}.log"
    with (
        open(log, "wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True) as process,
    ):
        try:
            output = _wait(process, interrupt)
        finally:
            if process.poll() is None:
                process.kill()
    lines = output.decode(errors="replace").splitlines()
    try:
        outcome = json.loads(lines[-1])
    except (ValueError, IndexError):
        how = f"killed by signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
        last = (log.read_text(errors="replace").strip().splitlines() or [""])[-1][:200]
        raise ErgoError(f"{spec.engine} could not {step} {spec.model}: the process ended ({how}) {last}") from None
    log.unlink()
    if outcome["error"]:
        raise _ERRORS.get(outcome["exit"], ErgoError)(outcome["error"])


def _wait(
    process: "subprocess.Popen[bytes]",
    interrupt: Interrupt | None,
    longest_s: float = LONGEST_S,
    idle_s: float = _IDLE_S,
) -> bytes:
    """What it prints until it ends; UnavailableError if that takes too long, or if it does nothing for too long."""
    assert process.stdout is not None
    collected, busy_at, looked_at = b"", time.monotonic(), time.monotonic()
    deadline = busy_at + longest_s
    listening: list[Any] = [process.stdout] + ([interrupt] if interrupt else [])
    cpu, used_ns = CpuTime(Processes(Path("/"), process.pid, tree=True)), 0
    while True:
        wait_s = min(deadline, looked_at + idle_s / _LOOKS) - time.monotonic()
        readable, _, _ = select.select(listening, [], [], max(0.0, wait_s))
        if not readable:
            if (now := time.monotonic()) >= deadline:
                raise UnavailableError(f"it did not end in {longest_s:g} s, and was stopped")
            before_ns, used_ns = used_ns, int(cpu.read())
            if used_ns - before_ns >= _IDLE * (now - looked_at) * 1e9:
                busy_at = now
            elif now - busy_at >= idle_s:
                raise UnavailableError(f"it did nothing for {idle_s:g} s, as where a driver hangs, and was stopped")
            looked_at = now
            continue
        if interrupt is not None and interrupt.count:
            raise StoppedError("stopped by the user")
        if process.stdout in readable:
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                process.wait()
                return collected
            collected += data


def make_key(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
