"""`ergo run`, `runs` and `show` as a user calls them."""

import contextlib
import json
import os
import pty
import re
import sys
from pathlib import Path

import pytest

from ergometer.store.spans import SpanTable
from tests.conftest import ERGO, Ergo, one_sentence
from tests.trees import JETSON_ORIN, plant_over_real_proc

QUICK = ("--time", "0.6s")
NETWORK = """
from torch import nn

def build(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))

def whole():
    return build(10)

def wrong_shape():
    return nn.Sequential(nn.Flatten(), nn.Linear(3, 3))

def frozen():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.live, self.dead = build(10), nn.Linear(2, 2)
        def forward(self, x):
            return self.live(x)
    return Frozen()

def crash():
    import os
    os.abort()

def hang():
    import time
    time.sleep(600)

def diverges():
    class Diverges(nn.Module):
        def __init__(self):
            super().__init__()
            self.live = build(10)
        def forward(self, x):
            return self.live(x) * float("nan")
    return Diverges()
"""


@pytest.mark.alone
def test_a_sweep_gives_a_row_and_a_record_each(ergo: Ergo, tmp_path: Path) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_ORIN)
    out = tmp_path / "out.json"
    done = ergo("run", "lenet", "--batch", "2,4", *QUICK, "--json", str(out), ERGO_SYSROOT=str(root))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("lenet") >= 2 and "step time" in done.stdout
    records = json.loads(out.read_text())
    assert [record["spec"]["batch"] for record in records] == [2, 4]
    for record in records:
        assert (record["status"], record["reason"], record["format"]) == ("ok", "", 1)
        assert {"processor", "cores", "capacities", "memory_bytes", "kernel", "governors", "versions"} <= set(
            record["host"]
        )
        assert record["host"]["temperatures_c"] == {"cpu-thermal": 48.5, "gpu-thermal": 46.25}
        _check_metrics(record["metrics"], record["spec"]["batch"])
    assert [record["id"] for record in ergo.records()] == [record["id"] for record in records]
    for level, words in (("--phases", "backward"), ("--layers", "conv2"), ("--ops", "ConvolutionBackward0")):
        shown = ergo("show", "last", level)
        assert shown.returncode == 0 and words in shown.stdout, shown.stderr
    assert "energy" in ergo("show", records[0]["id"]).stdout
    assert not list(ergo.home.glob("runs/*/*.raw"))


def _check_metrics(metrics: dict[str, dict[str, object]], batch: int) -> None:
    def value(name: str) -> float:
        return float(metrics[name]["value"])  # type: ignore[arg-type]

    times = {"step_time", "throughput", "forward_time", "backward_time", "optimizer_time", "observer.rate"}
    counts = {"parameters", "macs_forward", "macs_backward", "achieved_flops", "observer.cpu", "peak_memory"}
    parts = ("parameters", "gradients", "optimizer", "input", "activations", "other", "baseline")
    sampled = {"cpu_utilisation", "cpu_utilisation.0", "idle_ratio.0", "energy_per_step", "energy_per_sample"}
    named = {"power.VDD_IN", "temperature.cpu-thermal", "frequency.0", "gpu_utilisation.0"}
    expected = times | counts | sampled | named | {f"memory.{part}" for part in parts}
    assert expected <= set(metrics)
    for metric in metrics.values():
        assert set(metric) == {"value", "unit", "n", "low", "high", "source", "note"}
    assert value("throughput") == pytest.approx(batch / value("step_time"))
    phases = sum(value(f"{phase}_time") for phase in ("forward", "backward", "optimizer"))
    assert phases == pytest.approx(value("step_time"), rel=0.15)
    assert value("parameters") == 349_980 and value("memory.parameters") == 4 * 349_980
    assert value("macs_forward") == batch * 2_212_000
    whole = sum(value(name) for name in metrics if name.startswith("memory."))
    assert whole == pytest.approx(value("peak_memory"))
    assert value("power.VDD_IN") == pytest.approx(6.0)
    steps = float(metrics["step_time"]["n"])  # type: ignore[arg-type]
    mean_step = value("energy_per_step") / 6.0
    assert steps >= 6 and 0.5 * value("step_time") < mean_step < 3 * value("step_time")
    assert value("observer.rate") == pytest.approx(100, rel=0.2)
    low, high = metrics["step_time"]["low"], metrics["step_time"]["high"]
    assert low <= value("step_time") <= high  # type: ignore[operator]


@pytest.mark.alone
def test_inference_with_threads_to_standard_output(ergo: Ergo) -> None:
    done = ergo("run", "lenet", "--mode", "infer", "--batch", "16", "--threads", "1,2", *QUICK, "--json", "-")
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert [record["spec"]["threads"] for record in records] == [1, 2]
    for record in records:
        assert record["metrics"]["memory.gradients"]["value"] == 0
        assert "backward_time" not in record["metrics"]
        assert record["metrics"]["macs_backward"]["value"] == 0
        assert "ergo doctor" in record["absent"]["energy_per_step"]


@pytest.mark.alone
def test_pinned_to_a_core(ergo: Ergo) -> None:
    done = ergo("run", "lenet", "--cores", "0", "--steps", "200", "--json", "-")
    (record,) = json.loads(done.stdout)
    assert record["status"] == "ok"
    assert record["spec"]["cores"] == [0] and record["host"]["engine_threads"] == 1
    assert record["metrics"]["step_time"]["n"] == 200
    steps = SpanTable.load(Path(record["directory"]) / "spans.npz").select(kind="step", name="timed")
    busy = record["metrics"]["cpu_time_per_step"]["value"] / steps.duration_s.mean()
    assert busy < 1.05, "one core gives at most one second of CPU time per second"


@pytest.fixture
def network(tmp_path: Path) -> str:
    (tmp_path / "net.py").write_text(NETWORK)
    return str(tmp_path / "net.py")


def test_the_users_own_module(ergo: Ergo, network: str) -> None:
    for function in ("build", "whole"):
        done = ergo("run", f"{network}:{function}", "--input", "3x12x12", "--classes", "10", *QUICK, "--json", "-")
        (record,) = json.loads(done.stdout)
        assert record["status"] == "ok", record["reason"]
        assert record["metrics"]["parameters"]["value"] == 4 * 27 + 4 + 50
        assert record["spec"]["options"]["source"]


@pytest.mark.parametrize(
    ("function", "status", "says"),
    [
        ("wrong_shape", "failed", "RuntimeError: mat1 and mat2"),
        ("frozen", "not_learning", "dead.weight and 1 more did not change"),
        ("diverges", "not_learning", "the loss is nan at step 1"),
        ("crash", "failed", "was killed by SIGABRT during load"),
        ("absent", "failed", "has no function 'absent'"),
    ],
)
def test_a_module_that_does_not_work_is_a_record(
    ergo: Ergo, network: str, function: str, status: str, says: str
) -> None:
    done = ergo("run", f"{network}:{function}", "--input", "3x12x12", "--classes", "10", *QUICK)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert says in done.stdout
    (record,) = ergo.records()
    assert record["status"] == status and says in record["reason"]
    assert "step_time" not in record["metrics"]


@pytest.mark.alone
def test_a_worker_that_hangs_is_killed(ergo: Ergo, network: str) -> None:
    done = ergo("run", f"{network}:hang", "--input", "3x12x12", "--classes", "10", "--hang-timeout", "8s")
    assert done.returncode == 1
    assert "--hang-timeout" in done.stdout
    assert ergo.records()[0]["status"] == "failed"


@pytest.mark.alone
@pytest.mark.parametrize("way", ["cgroup", "watched"])
def test_out_of_memory_is_a_row_and_the_sweep_goes_on(ergo: Ergo, way: str, tmp_path: Path) -> None:
    environment = {}
    if way == "watched":  # as where no cgroup can be made
        (tmp_path / "site").mkdir()
        (tmp_path / "site/sitecustomize.py").write_text(
            "import ergometer.run.limit as limit\nlimit.make_group = lambda name, size: None\n"
        )
        environment["PYTHONPATH"] = str(tmp_path / "site")
    done = ergo(
        "run", "mobilenet_v2", "--batch", "64,1", "--input", "3x96x96", *QUICK, "--trace-steps", "1",
        "--memory-limit", "700MB", "--json", "-", **environment,
    )  # fmt: skip
    large, small = json.loads(done.stdout)
    assert done.returncode == 1
    assert (large["status"], small["status"]) == ("out_of_memory", "ok")
    assert "700 MB" in large["reason"] and ("watched" in large["reason"]) == (
        way == "watched" or "cgroup" not in large["reason"]
    )
    assert 500e6 < large["metrics"]["peak_memory"]["value"] < 1100e6
    assert small["metrics"]["peak_memory"]["value"] < 700e6


@pytest.mark.alone
def test_a_terminal_sees_the_run_go_on_and_a_table_that_fits(ergo: Ergo, tmp_path: Path) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_ORIN)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(ergo.environment, ERGO_SYSROOT=str(root), COLUMNS="80", TERM="xterm")
        os.execv(sys.executable, [*ERGO, "run", "lenet", "--time", "2s"])
    text = ""
    with contextlib.suppress(OSError):  # the terminal closes when the command ends
        while data := os.read(terminal, 65536):
            text += data.decode()
    os.close(terminal)
    assert os.waitpid(pid, 0)[1] == 0
    progress, table = text.rsplit("\r\x1b[K", 1)
    assert "timed · step" in progress and "samples/s" in progress
    assert "48 °C" in progress and "6.00 W VDD_IN" in progress
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in table.splitlines()]
    assert all(len(line) <= 80 for line in lines)
    row = next(line for line in lines if line.strip().startswith("lenet"))
    assert re.search(r"[mµ]s ±", row) and "ok" in row and "samples/s" in row


def test_lists_and_doctor(ergo: Ergo) -> None:
    for kind, word in (
        ("models", "squeezenet"),
        ("engines", "torch_compile"),
        ("sensors", "rapl"),
        ("data", "synthetic"),
    ):
        done = ergo("list", kind)
        assert done.returncode == 0 and word in done.stdout
    done = ergo("doctor")
    assert done.returncode == 0
    for word in ("raspberrypi", "what would fix it", "memory limit", "sampler"):
        assert word in done.stdout


def test_help_teaches(ergo: Ergo) -> None:
    assert "ergo doctor" in ergo("--help").stdout
    for command in ("doctor", "list", "run", "runs", "show", "exec"):
        done = ergo(command, "--help")
        assert done.returncode == 0 and len(done.stdout) > 300
    assert "--memory-limit" in ergo("run", "--help").stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "mobilnet_v2"), "did you mean mobilenet_v2"),
        (("run", "lenet", "--batch", "0"), "batch 0 is out of range"),
        (("run", "lenet", "--batch=-1"), "batch -1 is out of range"),
        (("run", "lenet", "--batch", "99999999"), "out of range"),
        (("run", "mobilenet_v2", "--batch", "1000000"), "smaller batch"),
        (("run", "lenet", "--batch", "1,x"), "whole numbers"),
        (("run", "lenet", "--batch", "1,,2"), "empty entry"),
        (("run", "lenet", "--engine", "tensorflaw"), "unknown engine"),
        (("run", "lenet", "--device", "cuda"), "install the NVIDIA driver"),
        (("run", "lenet", "--engine", "tinygrad", "--device", "cuda"), "apt install nvidia-driver"),
        (("run", "lenet", "--mode", "dream"), "choose train or infer"),
        (("run", "lenet", "--cores", "77"), "not all here"),
        (("run", "lenet", "--cores", "big"), "no big cores"),
        (("run", "lenet", "--memory-limit", "lots"), "write it like"),
        (("run", "lenet", "--period", "1us"), "1ms to 60s"),
        (("run", "lenet", "--sensors", "cores,nose"), "unknown sensor"),
        (("run", "lenet", "--data", "mnits"), "unknown data"),
        (("run", "absent.py:build", "--input", "3x4x4", "--classes", "3"), "cannot be read"),
        (("show", "last"), "ergo runs"),
        (("runs", "--last", "0"), "give 1 or more"),
        (("run", "lenet", "--steps", "5", "--time", "1s"), "exclude each other"),
        (("run", "lenet", "--input", "1x8x8"), "16 or more pixels"),
        (("run", "squeezenet", "--input", "3x8x8"), "32 or more pixels a side"),
        (("run", "lenet", "--seed=-1"), "seed -1 is out of range"),
        (("run", "lenet", "--hang-timeout", "0"), "1s or more"),
        (("run", "lenet", "--sensors", "ina3221"), "does not work here"),
        (("run", "lenet", "--json", "/absent/x.json"), "cannot be written"),
        (("show", "last", "--top", "0"), "1 or more"),
        (("exec",), "no command given"),
        (("exec", "--", "no-such-command-here"), "check the name"),
    ],
)
def test_a_wrong_request_gets_one_sentence(ergo: Ergo, arguments: tuple[str, ...], says: str) -> None:
    if arguments[-1] == "cuda":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("there is a CUDA device")
    assert says in one_sentence(ergo(*arguments))
    assert not (ergo.home / "runs").exists()
