"""Any command, and any Python program, under the same sampler."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ergometer
from tests.conftest import Ergo
from tests.trees import JETSON_TX2, plant_over_real_proc

pytestmark = pytest.mark.alone


def test_a_command_keeps_its_output_and_exit_status(ergo: Ergo, tmp_path: Path) -> None:
    done = ergo("exec", "--json", str(tmp_path / "out.json"), "--", "sh", "-c", "echo hello; exit 3")
    assert done.stdout == "hello\n"
    assert done.returncode == 3
    (record,) = json.loads((tmp_path / "out.json").read_text())
    assert (record["status"], record["spec"]["mode"]) == ("failed", "exec")
    assert "exit status 3" in record["reason"]


def test_what_a_command_costs(ergo: Ergo, tmp_path: Path) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    burn = (
        "import time\nx = bytearray(150 << 20)\nend = time.process_time() + 0.8\nwhile time.process_time() < end: pass"
    )
    script = f"{sys.executable} -c '{burn}' && sleep 0.5"
    done = ergo("exec", "--", "sh", "-c", script, ERGO_SYSROOT=str(root))
    assert done.returncode == 0, done.stderr
    (record,) = ergo.records()
    found = {name: metric["value"] for name, metric in record["metrics"].items()}
    assert 1.2 < found["wall_time"] < 6
    assert 0.75 < found["cpu_time"] < 1.6, "0.8 s and the start of an interpreter"
    assert found["peak_memory"] == pytest.approx(165e6, rel=0.15)
    assert found["energy"] == pytest.approx(4.321 * found["wall_time"], rel=0.05)
    assert record["metrics"]["energy"]["source"] == "integrated"


def test_memory_of_a_small_command_is_its_own(ergo: Ergo) -> None:
    ergo("exec", "--", "sleep", "0.3")
    (record,) = ergo.records()
    assert record["metrics"]["peak_memory"]["value"] < 12e6, "not that of the process that started it"


def test_short_children_and_many_processes_are_counted(ergo: Ergo) -> None:
    burn = "import time; e=time.process_time()+0.1\nwhile time.process_time()<e: pass"
    ergo("exec", "--", "sh", "-c", f"for i in 1 2 3 4 5; do {sys.executable} -c '{burn}'; done")
    hold = "import time; x=bytearray(60<<20); time.sleep(0.8)"
    ergo("exec", "--", "sh", "-c", f"for i in 1 2 3; do {sys.executable} -c '{hold}' & done; wait")
    short, many = ergo.records()
    assert short["metrics"]["cpu_time"]["value"] > 0.5
    assert many["metrics"]["peak_memory"]["value"] > 180e6


def test_a_script_without_an_interpreter_is_one_sentence(ergo: Ergo, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo hi\n")
    script.chmod(0o755)
    done = ergo("exec", "--", str(script))
    assert done.returncode == 126
    assert "does it begin with #!" in done.stderr and "Traceback" not in done.stderr


def test_json_on_standard_output_stands_alone(ergo: Ergo) -> None:
    done = ergo("exec", "--json", "-", "--", "echo", "hello")
    assert json.loads(done.stdout)[0]["status"] == "ok"
    assert "hello" in done.stderr


def test_what_is_before_the_command_is_not_its_cost(ergo: Ergo) -> None:
    ergo("exec", "--", "sleep", "0.3")
    (record,) = ergo.records()
    assert record["metrics"]["cpu_time"]["value"] < 0.02


def test_a_killed_command_is_said_to_be_killed(ergo: Ergo) -> None:
    done = ergo("exec", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    assert "SIGKILL" in ergo.records()[0]["reason"]


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_nested_windows(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    monkeypatch.setenv("ERGO_SYSROOT", str(root))
    with ergometer.measure("epoch") as epoch:
        with ergometer.measure("busy") as busy:
            spin(0.5)
        inside = busy.record
        with ergometer.measure("idle") as idle:
            time.sleep(0.4)
    assert inside.metrics["cpu_time"].value == pytest.approx(0.5, abs=0.05)
    assert idle.record.metrics["cpu_time"].value < 0.1
    wall = {window.name: window.record.metrics["wall_time"].value for window in (epoch, busy, idle)}
    assert wall["epoch"] >= wall["busy"] + wall["idle"]
    assert epoch.record.metrics["energy"].value == pytest.approx(4.321 * wall["epoch"], rel=0.05)
    assert idle.record.metrics["energy"].value == pytest.approx(4.321 * wall["idle"], rel=0.05)
    assert epoch.record.status == "ok" and epoch.record.spec.model == "epoch"
    from ergometer.store.database import Store

    with Store() as store:
        assert [record.spec.model for record in store.records()] == ["epoch"]


def test_a_window_that_is_too_short_refuses_its_energy(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERGO_SYSROOT", str(plant_over_real_proc(tmp_path / "root", JETSON_TX2)))
    with ergometer.measure("outer"):
        time.sleep(0.2)
        with ergometer.measure("blink") as blink:
            pass
    assert "energy" not in blink.record.metrics
    assert "too short" in blink.record.absent["energy"]


def test_an_error_inside_is_kept_and_passed_on(home: Path) -> None:
    with pytest.raises(KeyError), ergometer.measure("broken") as window:
        raise KeyError("x")
    assert window.record.status == "failed" and "KeyError" in window.record.reason
    with pytest.raises(ergometer.ErgoError, match="used before"), window:
        pass
    for name in ("", 5):
        with pytest.raises(ergometer.ErgoError, match="needs a name"):
            ergometer.measure(name)  # type: ignore[arg-type]
    with pytest.raises(ergometer.ErgoError, match="has not ended"):
        _ = ergometer.measure("never").record
    with ergometer.measure("again") as window:
        time.sleep(0.05)
    assert window.record.status == "ok"


def modules_of(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_no_framework_is_loaded_where_none_is_needed() -> None:
    shown = "print(*sys.modules)"
    heavy = {"torch", "numpy", "sqlalchemy", "rich"}
    helped = modules_of(
        "import sys, contextlib, io\nsys.argv = ['ergo', '--help']\nfrom ergometer.cli import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()\n{shown}"
    )
    assert "ergometer.cli" in helped and not heavy & helped
    sampler = modules_of(
        "import sys\nimport ergometer.sensors.__main__ as m\nfrom ergometer.core import registry\n"
        f"registry.load_all('sensors')\n{shown}"
    )
    assert "ergometer.sensors.nvml" in sampler and not heavy & sampler
    assert "torch" not in modules_of(
        f"import sys, ergometer.run.parent, ergometer.run.measure, ergometer.cli._sweep\n{shown}"
    )
