"""Whether something else used the cores, from what the system counts of them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ergometer.run.neighbours import Neighbours

CORE = min(os.sched_getaffinity(0))
ELSEWHERE = max(os.sched_getaffinity(0)) + 1


def write(root: Path, *, core: int = CORE, user: int = 0, iowait: int = 0, steal: int = 0) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "stat").write_text(
        f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu{core} {user} 0 0 5 {iowait} 0 0 {steal} 0 0\nintr 5\n"
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ERGO_SYSROOT", str(tmp_path))
    write(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("what", "seen"), [("user", True), ("steal", True), ("iowait", False)])
def test_what_others_and_the_host_take_is_seen(root: Path, what: str, seen: bool) -> None:
    neighbours = Neighbours(os.getpid())
    assert not neighbours.disturbed()
    write(root, **{what: 100})
    assert neighbours.disturbed() is seen


def test_what_is_used_on_other_cores_does_not_count(root: Path) -> None:
    write(root, core=ELSEWHERE)
    neighbours = Neighbours(os.getpid())
    write(root, core=ELSEWHERE, user=100)
    assert not neighbours.disturbed()


def test_what_the_process_uses_itself_does_not_count(root: Path) -> None:
    neighbours = Neighbours(os.getpid())
    before = time.process_time()
    while (used_s := time.process_time() - before) < 0.2:
        pass
    write(root, user=round(100 * used_s))
    assert not neighbours.disturbed()


def test_where_nothing_is_shown_nothing_is_seen(root: Path) -> None:
    (root / "proc" / "stat").unlink()
    assert not Neighbours(os.getpid()).disturbed()


def test_a_process_that_has_ended_is_not_disturbed(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        neighbours = Neighbours(process.pid)
    write(root, user=1000)
    assert not neighbours.disturbed()
