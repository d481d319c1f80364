"""What tests share: a store of their own, and `ergo` as a user calls it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# On a loaded machine the first example of a test may take longer than hypothesis allows by default.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

# A shell starts a job in the background with Ctrl-C ignored, which our children would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

ERGO = [sys.executable, "-m", "ergometer"]


class Ergo:
    """Calls the command line in a process of its own, with a store of its own."""

    def __init__(self, home: Path):
        self.home = home
        self.environment = {**os.environ, "ERGO_HOME": str(home), "COLUMNS": "200"}

    def __call__(self, *arguments: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*ERGO, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**self.environment, **environment},
            check=False,
        )

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*ERGO, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environment, **environment},
        )

    def records(self) -> list[dict[str, Any]]:
        done = self("runs", "--json", "-")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def children(pid: int, module: str) -> list[int]:
    """Processes of that parent that run that module."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            line = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if parent == pid and module.encode() in line and b"-I" not in line:
            found.append(int(entry.name))
    return found


@pytest.fixture
def ergo(tmp_path: Path) -> Ergo:
    return Ergo(tmp_path / "home")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ERGO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def sysroot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], Path]]:
    """Plants a tree and makes it the root in which sensors look."""
    from tests.trees import plant

    def use(tree: dict[str, str]) -> Path:
        root = plant(tmp_path / "root", tree)
        monkeypatch.setenv("ERGO_SYSROOT", str(root))
        return root

    yield use


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Standard error, after checking that it is one clear sentence and no traceback."""
    assert done.returncode not in (0, None)
    assert "Traceback" not in done.stderr + done.stdout
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("[")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("ergo: ")
    return lines[0]
