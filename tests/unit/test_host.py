import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ergometer.core.errors import UsageError
from ergometer.core.registry import load, unknown
from ergometer.run.host import capacities, choose_cores, fingerprint
from ergometer.run.limit import MemoryGroup, make_group
from ergometer.run.resolve import check
from tests.trees import JETSON_ORIN, PHONE

Sysroot = Callable[[dict[str, str]], Path]


def test_big_and_little_by_capacity(sysroot: Sysroot, monkeypatch: pytest.MonkeyPatch) -> None:
    root = sysroot(PHONE)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    assert capacities(root) == {0: 414, 1: 1024}
    assert choose_cores("big", root) == (1,)
    assert choose_cores("little", root) == (0,)


def test_big_and_little_by_frequency_where_capacity_is_absent(
    sysroot: Sysroot, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = "sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq"
    root = sysroot({cpu.format(0): "1800000", cpu.format(1): "1800000", cpu.format(2): "2400000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
    assert choose_cores("big", root) == (2,)
    assert choose_cores("little", root) == (0, 1)


def test_numbers_and_ranges(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert choose_cores("0,2", tmp_path) == (0, 2)
    assert choose_cores("1-3,5", tmp_path) == (1, 2, 3, 5)
    for wrong in ("9", "a", "", "1-", "big", "3-1"):
        with pytest.raises(UsageError):
            choose_cores(wrong, tmp_path)


def test_the_fingerprint_is_of_the_tree(sysroot: Sysroot) -> None:
    sysroot(JETSON_ORIN)
    found = fingerprint()
    assert found["processor"] == "Test CPU"
    assert found["memory_bytes"] == 8_000_000 * 1024
    assert found["governors"] == {"policy0": "schedutil"}
    assert found["temperatures_c"] == {"cpu-thermal": 48.5, "gpu-thermal": 46.25}
    assert found["pressure"].startswith("some")
    assert {"python", "ergometer", "numpy"} <= set(found["versions"])


def test_unknown_names_show_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean mobilenet_v2"):
        load("models", "mobilnet_v2")
    assert "choose from a, b" in unknown("model", "zzzz", ["a", "b"])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("net.py", "", "names no function"), ("net.py:build", "def build(:", "not valid Python"),
        ("absent.py:build", "", "cannot be read"), ("net.py:build", "def build(): pass", "--input"),
    ],
)  # fmt: skip
def test_a_users_file_is_checked_before_anything_runs(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / "net.py").write_text(text)
    with pytest.raises(UsageError, match=says):
        check(str(tmp_path / name), None, None)


def test_the_source_of_a_users_file_is_part_of_the_spec(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def build(): pass")
    first = check(f"{tmp_path}/net.py:build", (3, 8, 8), 10)
    (tmp_path / "net.py").write_text("def build(): return 1")
    assert check(f"{tmp_path}/net.py:build", (3, 8, 8), 10) != first


@pytest.mark.parametrize(("version", "file"), [(1, "memory.oom_control"), (2, "memory.events")])
def test_kills_of_a_group_are_counted(tmp_path: Path, version: int, file: str) -> None:
    (tmp_path / file).write_text("low 0\noom 5\noom_kill 2\noom_group_kill 0\n")
    assert MemoryGroup(tmp_path, version).kills() == 2


def test_a_group_is_made_or_refused_without_a_trace() -> None:
    group = make_group(f"ergo-test-{os.getpid()}", 1 << 28)
    if group is None:
        pytest.skip("no cgroup can be made here")
    assert group.path.is_dir()
    group.remove()
    assert not group.path.exists()
