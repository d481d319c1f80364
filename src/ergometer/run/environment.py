"""The Python that an engine runs in: ours, or an environment of its own whose packages exclude ours.

Such an environment lies in engines/NAME of the environment that Ergometer is installed in.
"""

import json
import subprocess
import sys
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


def python_of(engine: str) -> str:
    own = Path(sys.prefix) / "engines" / engine / "bin" / "python"
    return str(own) if own.exists() else sys.executable


def probe_of(engine: str, device: str) -> Probe:
    """Whether the engine works on the device, in its own environment."""
    if python_of(engine) == sys.executable:
        found: Engine = registry.load("engines", engine)()
        return found.probe(device)
    return Probe(*_asked(engine, device)["probe"])


def versions_of(engine: str, device: str) -> dict[str, str]:
    """Versions of the engine's packages, in its own environment."""
    if python_of(engine) == sys.executable:
        found: Engine = registry.load("engines", engine)()
        return found.versions()
    return dict(_asked(engine, device)["versions"])


@cache
def _asked(engine: str, device: str) -> dict[str, Any]:
    command = [python_of(engine), "-c", _ASK, engine, device]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        why = f"its own environment does not work ({last[:120]})"
        return {"probe": [False, why, f"remove {Path(python_of(engine)).parents[1]} and make it again"], "versions": {}}
