"""What goes wrong on real devices: one sentence, the remedy, a non-zero exit, and nothing finished is lost."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ERGO, Ergo, children, one_sentence
from tests.trees import JETSON_TX2, LAPTOP, plant_over_real_proc

pytestmark = pytest.mark.alone

LONG = ("--steps", "1000000")
NO_TORCH = """
import sys
from importlib.machinery import PathFinder

class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "torch" else super().find_spec(name, path, target)

sys.meta_path = [WithoutTorch if finder is PathFinder else finder for finder in sys.meta_path]
"""


def wait_for_child(pid: int, module: str) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = children(pid, module)
        if found:
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"no {module}")


def wait_for_stage(ergo: Ergo, seconds: float) -> None:
    """Until the worker has been running for so long."""
    deadline = time.monotonic() + 30
    while not list(ergo.home.glob("runs/*/samples.raw")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(seconds)


def finished_run(ergo: Ergo) -> str:
    done = ergo("exec", "--", "true")
    assert done.returncode == 0, done.stderr
    return str(ergo.records()[0]["id"])


def test_without_the_extra_the_install_command_is_shown(ergo: Ergo, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_TORCH)
    bare = {"PYTHONPATH": str(tmp_path)}
    assert "pip install 'ergometer[torch]'" in one_sentence(ergo("run", "lenet", **bare))
    assert ergo("list", "models", **bare).returncode == 0
    assert "pip install 'ergometer[torch]'" in ergo("doctor", **bare).stdout
    assert ergo("exec", "--", "true", **bare).returncode == 0
    assert "wall_time" in ergo("show", "last", **bare).stdout


@pytest.mark.parametrize("command", [("runs",), ("show", "last"), ("run", "lenet"), ("exec", "--", "true")])
def test_a_store_that_cannot_be_read(ergo: Ergo, command: tuple[str, ...]) -> None:
    ergo.home.mkdir()
    (ergo.home / "ergometer.db").write_bytes(b"scrambled" * 500)
    assert "set ERGO_HOME" in one_sentence(ergo(*command))
    assert (ergo.home / "ergometer.db").read_bytes() == b"scrambled" * 500


def test_a_store_of_a_newer_version(ergo: Ergo) -> None:
    finished_run(ergo)
    with sqlite3.connect(ergo.home / "ergometer.db") as connection:
        connection.execute("INSERT INTO migrations VALUES (999, 'the future')")
    assert "upgrade ergometer" in one_sentence(ergo("run", "lenet"))


def test_a_directory_that_cannot_be_written(ergo: Ergo, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in ("/proc/ergometer", str(tmp_path / "file/home")):
        assert "ERGO_HOME" in one_sentence(ergo("run", "lenet", ERGO_HOME=home))
    for target in ("/proc/out.json", "", str(tmp_path)):
        assert "cannot be written" in one_sentence(ergo("runs", "--json", target))


def test_a_json_target_that_is_no_plain_file_is_written_not_replaced(ergo: Ergo, tmp_path: Path) -> None:
    finished_run(ergo)
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert ergo("runs", "--json", str(tmp_path / "link.json")).returncode == 0
    assert (tmp_path / "link.json").is_symlink() and len(json.loads((tmp_path / "real.json").read_text())) == 1
    os.mkfifo(tmp_path / "pipe")
    process = ergo.start("runs", "--json", str(tmp_path / "pipe"))
    assert len(json.loads((tmp_path / "pipe").read_text())) == 1
    process.communicate(timeout=20)
    assert (tmp_path / "pipe").is_fifo()


def test_output_that_cannot_be_written(ergo: Ergo) -> None:
    finished_run(ergo)
    with open("/dev/full", "w") as full:
        done = subprocess.run([*ERGO, "runs"], stdout=full, stderr=subprocess.PIPE, text=True, env=ergo.environment)
    assert done.returncode == 4
    assert done.stderr == "ergo: the output cannot be written: no space left on device\n"


def test_a_moved_home_keeps_its_details(ergo: Ergo, tmp_path: Path) -> None:
    finished_run(ergo)
    ergo.home.rename(tmp_path / "moved")
    moved = Ergo(tmp_path / "moved")
    shown = moved("show", "last", "--ops")
    assert "no traced steps" in shown.stderr, "its spans were found"


@pytest.mark.parametrize("root", ["empty", "file", "absent"])
def test_a_root_without_sensors(ergo: Ergo, tmp_path: Path, root: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    done = ergo("doctor", ERGO_SYSROOT=str(tmp_path / root))
    if root == "empty":
        assert done.returncode == 0 and "sensors" in done.stdout
        assert ergo("exec", "--", "true", ERGO_SYSROOT=str(tmp_path / root)).returncode == 0
    else:
        assert "ERGO_SYSROOT" in one_sentence(done)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_nearly_full_is_refused_before_the_run(small_disk: Path) -> None:
    ergo = Ergo(small_disk / "home")
    kept = finished_run(ergo)
    (small_disk / "ballast").write_bytes(bytes(25 << 20))
    assert "free some space" in one_sentence(ergo("run", "lenet"))
    (small_disk / "ballast").unlink()
    assert [record["id"] for record in ergo.records()] == [kept]


def test_a_disk_that_fills_up_during_the_run(small_disk: Path) -> None:
    ergo = Ergo(small_disk / "home")
    kept = finished_run(ergo)
    process = ergo.start("run", "lenet", *LONG)
    wait_for_stage(ergo, 1.0)
    with open(small_disk / "ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            pass
    output, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    assert "Traceback" not in output + errors
    assert "space" in output + errors or "full" in output + errors
    (small_disk / "ballast").unlink()
    records = ergo.records()
    assert records[0]["id"] == kept and records[0]["status"] == "ok"
    assert [record["status"] for record in records[1:]] in (["failed"], ["interrupted"])
    assert finished_run(ergo)


def test_a_store_on_a_read_only_disk_can_still_be_shown(small_disk: Path) -> None:
    ergo = Ergo(small_disk / "home")
    kept = finished_run(ergo)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert [record["id"] for record in ergo.records()] == [kept]
    assert "wall_time" in ergo("show", kept).stdout
    assert "ERGO_HOME" in one_sentence(ergo("run", "lenet"))


def test_two_runs_at_once_wait_for_each_other(ergo: Ergo) -> None:
    both = [ergo.start("run", "lenet", "--time", "1s", "--trace-steps", "1") for _ in range(2)]
    texts = [process.communicate(timeout=90)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    assert sum("waiting for it to end" in text for text in texts) == 1
    assert [record["status"] for record in ergo.records()] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("module", "says"),
    [("ergometer.run.worker", "was killed by SIGKILL"), ("ergometer.sensors", "the sampler was killed")],
)
def test_a_killed_process_of_ours_is_a_failed_record(ergo: Ergo, module: str, says: str) -> None:
    process = ergo.start("run", "lenet", *LONG)
    victim = wait_for_child(process.pid, module)
    wait_for_stage(ergo, 3.0)
    os.kill(victim, signal.SIGKILL)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert says in output and "Traceback" not in output + errors
    assert ergo.records()[0]["status"] == "failed"
    assert "peak_memory" in ergo.records()[0]["metrics"]


@pytest.mark.parametrize("seconds", [0.3, 0.7, 1.2, 2.0, 3.0, 5.0])
def test_ctrl_c_at_every_stage(ergo: Ergo, seconds: float) -> None:
    process = ergo.start("run", "lenet", "squeezenet", "--steps", "1000000")
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=20)
    assert process.returncode == 130, output + errors
    assert "Traceback" not in output + errors
    records = ergo.records()
    assert len(records) <= 1, "the sweep must not go on"
    assert all(record["status"] == "interrupted" for record in records)
    assert not children(process.pid, "ergometer.run.worker")


def test_ctrl_c_while_a_module_is_being_imported_ends_with_our_status(tmp_path: Path) -> None:
    code = "from ergometer import cli; cli._main = lambda: exec('raise KeyboardInterrupt'); cli.main()"
    (tmp_path / "interrupted.py").write_text(code)
    command = [sys.executable, "-m", "interrupted"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "ergo: interrupted; what had finished is in the store\n"


def test_ctrl_c_keeps_the_steps_that_were_timed(ergo: Ergo) -> None:
    process = ergo.start("run", "lenet", "--steps", "1000000")
    wait_for_stage(ergo, 6.0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    (record,) = ergo.records()
    assert record["status"] == "interrupted" and "kept" in record["reason"]
    assert record["metrics"]["step_time"]["n"] > 20
    assert record["metrics"]["cpu_utilisation"]["value"] > 0


def test_ctrl_c_during_a_command_ends_it(ergo: Ergo) -> None:
    process = ergo.start("exec", "--", "sleep", "60")
    wait_for_stage(ergo, 0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    (record,) = ergo.records()
    assert record["status"] == "interrupted"
    assert record["metrics"]["wall_time"]["value"] < 30


def test_a_parent_killed_outright_leaves_an_interrupted_run_and_no_process(ergo: Ergo) -> None:
    kept = finished_run(ergo)
    process = ergo.start("run", "lenet", *LONG)
    ours = [wait_for_child(process.pid, module) for module in ("ergometer.run.worker", "ergometer.sensors")]
    wait_for_stage(ergo, 2.0)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}/exe").exists() for pid in ours) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in ours)
    first, second = ergo.records()
    assert (first["id"], first["status"]) == (kept, "ok")
    assert second["status"] == "interrupted" and "killed" in second["reason"]
    assert finished_run(ergo)


def test_a_users_file_that_does_not_import(ergo: Ergo, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import no_such_package_at_all\n")
    done = ergo("run", f"{tmp_path}/net.py:build", "--input", "3x8x8", "--classes", "3")
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert (
        "net.py does not import: ModuleNotFoundError: No module named 'no_such_package_at_all' (net.py line 1 in"
        in done.stdout
    )


def test_a_run_directory_that_was_deleted(ergo: Ergo) -> None:
    finished_run(ergo)
    for path in ergo.home.glob("runs/*/*.npz"):
        path.unlink()
    assert "wall_time" in ergo("show", "last").stdout
    assert "is missing" in one_sentence(ergo("show", "last", "--ops"))


class TestSensors:
    """Sensors that misbehave while a command is measured."""

    RAIL = "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1/in_power0_input"
    PACKAGE = "sys/class/powercap/intel-rapl:0/energy_uj"

    def observe(self, ergo: Ergo, root: Path, script: str) -> dict:  # type: ignore[type-arg]
        done = ergo("exec", "--json", "-", "--", "sh", "-c", script, ERGO_SYSROOT=str(root))
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return dict(json.loads(done.stdout)[0])

    def test_garbage_is_left_out_and_said(self, ergo: Ergo, tmp_path: Path) -> None:
        root = plant_over_real_proc(tmp_path, JETSON_TX2)
        record = self.observe(ergo, root, f"sleep 0.5; echo garbage > '{root / self.RAIL}'; sleep 1")
        assert "energy" not in record["metrics"]
        assert "cover only" in record["absent"]["energy"]
        assert any("unusable readings" in warning for warning in record["warnings"])
        assert record["metrics"]["wall_time"]["value"] > 1

    def test_a_counter_that_goes_backwards_is_no_energy(self, ergo: Ergo, tmp_path: Path) -> None:
        tree = {name: text for name, text in LAPTOP.items() if "power_supply" not in name and "max_energy" not in name}
        root = plant_over_real_proc(tmp_path, tree)
        beats = "; ".join(
            f"echo {value} > '{root / self.PACKAGE}'; sleep 0.2" for value in (9000000, 5000000, 6000000, 1000000)
        )
        record = self.observe(ergo, root, beats)
        assert record["metrics"].get("energy", {"value": 1.0})["value"] == pytest.approx(1.0, abs=0.3)

    def test_a_counter_that_wraps_is_added_up(self, ergo: Ergo, tmp_path: Path) -> None:
        tree = {name: text for name, text in LAPTOP.items() if "power_supply" not in name}
        root = plant_over_real_proc(tmp_path, tree)
        # 0.2 J up to the wrap at 262143.328850 J, 1.6 J across it, 1.5 J after it.
        values = (262143200000, 1_471_150, 2_971_150)
        beats = "; ".join(f"printf %012d {value} 1<> '{root / self.PACKAGE}'; sleep 0.3" for value in values)
        record = self.observe(ergo, root, f"sleep 0.3; {beats}")
        assert record["metrics"]["energy"]["value"] == pytest.approx(0.2 + 1.6 + 1.5, abs=0.05)

    def test_a_sensor_that_hangs_is_named(self, ergo: Ergo, tmp_path: Path) -> None:
        root = plant_over_real_proc(tmp_path, JETSON_TX2)
        (root / self.RAIL).unlink()
        os.mkfifo(root / self.RAIL)
        record = self.observe(ergo, root, "sleep 0.2")
        assert any("ina3221" in warning and "no answer" in warning for warning in record["warnings"])
        assert "energy" in record["absent"]
        done = ergo("doctor", ERGO_SYSROOT=str(root), timeout=60)
        assert done.returncode == 0 and "hangs when it is read" in done.stdout
