"""What leaves the store and what comes into it: traces, tables and records, through the command line."""

import csv
import gzip
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Ergo, one_sentence

pytestmark = pytest.mark.xdist_group("share")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ergo = Ergo(tmp_path_factory.mktemp("measured"))
    done = ergo("run", "lenet", "--batch", "2,4", "--steps", "25", "--threads", "1")
    assert done.returncode == 0, done.stderr
    return ergo.home


@pytest.fixture
def two(measured: Path, ergo: Ergo) -> Ergo:
    """A store with two runs, to do with as one likes."""
    shutil.copytree(measured, ergo.home, dirs_exist_ok=True)
    return ergo


def test_a_trace_joins_ops_and_counters(two: Ergo, tmp_path: Path) -> None:
    done = two("trace", "last", "-o", str(tmp_path / "trace.json.gz"))
    assert done.returncode == 0 and not done.stderr, done.stderr
    text = gzip.decompress((tmp_path / "trace.json.gz").read_bytes())
    found = json.loads(text)["traceEvents"]
    layers = {event["name"] for event in found if event.get("cat") == "layer"}
    assert {"conv1", "conv2", "fc1", "fc2"} <= layers
    (traced,) = (event for event in found if event.get("cat") == "stage" and event["name"] == "trace")
    ops = [event for event in found if event.get("cat") == "op"]
    assert all(traced["ts"] <= op["ts"] and op["ts"] + op["dur"] <= traced["ts"] + traced["dur"] for op in ops)
    counters = {event["name"] for event in found if event["ph"] == "C"}
    assert {"process.cpu", "process.rss", "cpu.busy.0"} <= counters
    shell = shutil.which("trace_processor_shell")
    if shell:  # Perfetto's own reader, where it is installed
        (tmp_path / "plain.json").write_bytes(text)
        (tmp_path / "q.sql").write_text("select count(*) as n from slice where category = 'op';")
        said = subprocess.run(
            [shell, "-q", str(tmp_path / "q.sql"), str(tmp_path / "plain.json")], capture_output=True, text=True
        )
        assert said.returncode == 0 and str(len(ops)) in said.stdout


def test_a_trace_without_samples_says_what_is_missing(two: Ergo, tmp_path: Path) -> None:
    for path in two.home.glob("runs/*/samples.npz"):
        path.unlink()
    done = two("trace", "last", "-o", str(tmp_path / "trace.json"))
    assert done.returncode == 0 and "without counters" in done.stderr
    for path in two.home.glob("runs/*/spans.npz"):
        path.write_bytes(path.read_bytes()[:100])
    done = two("trace", "last", "-o", str(tmp_path / "other.json"))
    assert done.returncode == 4 and "damaged" in one_sentence(done) and not (tmp_path / "other.json").exists()


def test_tables_and_records_leave_and_come_back(two: Ergo, tmp_path: Path) -> None:
    done = two("export", "model=lenet,batch=4", "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert row["batch"] == "4" and float(row["step_time"]) > 0 and row["step_time.unit"] == "s"
    assert two("export", "--format", "md").stdout.count("\n") == 4
    assert two("export", "--format", "parquet", "-o", str(tmp_path / "x.parquet")).returncode == 0
    assert two("export", "--format", "json", "-o", str(tmp_path / "x.json")).returncode == 0
    elsewhere = {"ERGO_HOME": str(tmp_path / "elsewhere")}
    assert "2 taken, 0 known" in two("import", str(tmp_path / "x.json"), **elsewhere).stdout
    assert "0 taken, 2 known" in two("import", str(tmp_path / "x.json"), **elsewhere).stdout
    assert "step_time" in two("show", "last", **elsewhere).stdout
    layers = two("show", "last", "--layers", **elsewhere)
    assert layers.returncode == 4 and "missing" in one_sentence(layers)


def test_runs_are_compared_and_a_limit_fails(two: Ergo, tmp_path: Path) -> None:
    done = two("compare", "batch=2", "batch=4", "--json", str(tmp_path / "c.json"))
    assert done.returncode == 0, done.stderr
    assert "batch: 2 against 4" in done.stdout and "fewer than 5 runs" in done.stdout
    found = json.loads((tmp_path / "c.json").read_text())
    (time, memory) = found["metrics"]
    assert time["metric"] == "step_time" and time["found"]["low"] <= time["found"]["ratio"] <= time["found"]["high"]
    assert memory["verdict"] == "one value each" and found["differing"] == {"batch": ["2", "4"]}
    same = two("compare", "last", "last", "--fail-if", "slower:5%", "--fail-if", "faster:5%", "--metric", "step_time")
    assert same.returncode == 0 and "no difference" in same.stdout


def test_a_difference_between_sets_of_runs_is_found(two: Ergo) -> None:
    """Six records of each kind, as another device would have sent them; one kind takes twice as long."""
    (record, _) = two.records()
    records = []
    for number in range(12):
        metrics = {"step_time": record["metrics"]["step_time"] | {"value": (1 + number // 6) * (1 + number % 6 / 100)}}
        spec = record["spec"] | {"seed": number // 6}
        records.append(record | {"id": f"made-{number}", "metrics": metrics, "spec": spec})
    (two.home / "made.json").write_text(json.dumps(records))
    assert two("import", str(two.home / "made.json")).returncode == 0
    done = two("compare", "id=made*,seed=0", "id=made*,seed=1", "--fail-if", "slower:50%")
    assert done.returncode == 1 and "slower" in done.stdout and "6 and 6 runs" in done.stdout
    assert two("compare", "id=made*,seed=1", "id=made*,seed=0", "--fail-if", "slower:5%").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (("export", "--format", "csv", "batch=3"), 2, "no record matches"),
        (("export", "--format", "csv", "bach=3"), 2, "did you mean batch"),
        (("export", "--format", "parquet"), 2, "name a file with -o"),
        (("export", "--format", "csv", "-o", "/nowhere/x.csv"), 2, "cannot be written"),
        (("import", "/nowhere/x.json"), 2, "no such file"),
        (("trace", "last", "-o", "/nowhere/x.json"), 2, "cannot be written"),
        (("trace", "none", "-o", "-"), 2, "ergo runs"),
        (("compare", "none", "last"), 2, "ergo runs"),
        (("compare", "batch=3", "batch=4"), 2, "no run with status ok"),
        (("compare", "last", "last", "--fail-if", "slower"), 2, "slower:5%"),
        (("compare", "last", "last", "--fail-if", "slower:much"), 2, "is not a share"),
        (("run", "lenet", "--repeat", "0"), 2, "--repeat 0 is out of range"),
    ],
)
def test_bad_input_gets_one_sentence(ergo: Ergo, arguments: tuple[str, ...], status: int, says: str) -> None:
    done = ergo(*arguments)
    assert done.returncode == status and says in one_sentence(done)
