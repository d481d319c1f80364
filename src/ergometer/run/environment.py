"""The Python that an engine runs in: ours, or an environment of its own whose packages exclude ours.

Such an environment lies in engines/NAME of the environment that Ergometer is installed in. What an engine says of an
accelerator is asked in another process too: its driver may crash or hang.
"""

import json
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from ergometer.core import registry
from ergometer.core.engine import Engine
from ergometer.core.probe import Probe

_ASK = """
import json, sys
from ergometer.core import registry
engine = registry.load("engines", sys.argv[1])()
probe = engine.probe(sys.argv[2])
facts = {"probe": [probe.ok, probe.reason, probe.remedy], "versions": engine.versions() if probe.ok else {}}
print(json.dumps(facts))
"""
_LONGEST_S = 60.0


def python_of(engine: str) -> str:
    own = Path(sys.prefix) / "engines" / engine / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def probe_of(engine: str, device: str) -> Probe:
    """Whether the engine works on the device, in its own environment."""
    if _is_ours(engine, device):
        found: Engine = registry.load("engines", engine)()
        return found.probe(device)
    return Probe(*_asked(engine, device)["probe"])


def probes() -> dict[tuple[str, str], Probe]:
    """Of every engine on each of its devices; those that take a process of their own at the same time."""
    pairs = [(name, device) for name, engine in registry.load_all("engines").items() for device in engine.devices]
    with ThreadPoolExecutor() as pool:
        return dict(zip(pairs, pool.map(lambda pair: probe_of(*pair), pairs), strict=True))


def versions_of(engine: str, device: str) -> dict[str, str]:
    """Versions of the engine's packages, in its own environment; and which accelerator there is."""
    if _is_ours(engine, device):
        found: Engine = registry.load("engines", engine)()
        return found.versions()
    facts = _asked(engine, device)
    return dict(facts["versions"]) | ({} if device == "cpu" else {f"{device} device": facts["probe"][1]})


def _is_ours(engine: str, device: str) -> bool:
    """Whether it can be asked in this process."""
    known = device in registry.load("engines", engine).devices
    return python_of(engine) == sys.executable and (device == "cpu" or not known)


@cache
def _asked(engine: str, device: str) -> dict[str, Any]:
    command = [python_of(engine), "-c", _ASK, engine, device]
    what = f"the driver of {device}" if device != "cpu" else "its own environment"
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except subprocess.TimeoutExpired:
        return _failed(f"{what} does not answer", "restart the device, or install it again")
    if done.returncode < 0:
        return _failed(f"{what} crashes ({signal.Signals(-done.returncode).name})", "install it again")
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        own = python_of(engine) != sys.executable
        remedy = f"remove {Path(python_of(engine)).parents[1]} and make it again" if own else ""
        return _failed(f"{what} does not work ({last[:120]})", remedy)


def _failed(why: str, remedy: str) -> dict[str, Any]:
    return {"probe": [False, why, remedy], "versions": {}}
