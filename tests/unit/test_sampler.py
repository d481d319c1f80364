import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ergometer.analyze.raw import read_raw
from ergometer.core.errors import ErgoError
from ergometer.core.process import CpuTime, Processes, ThreadWait, descendants
from ergometer.core.sensor import FileRead
from ergometer.core.timebox import within
from ergometer.run.sampling import Sampling
from ergometer.sensors.__main__ import Sampler
from ergometer.sensors._beat import LIBRARY, CompiledBeat
from tests.trees import JETSON_TX2, LAPTOP, PHONE, plant_over_real_proc

RAIL = "sys/bus/i2c/drivers/ina3221x/0-0041/iio:device1/in_power0_input"


def sampler(tmp_path: Path, **changes: object) -> Sampler:
    config = {
        "raw": str(tmp_path / "raw"), "period_s": 0.005, "pid": os.getpid(), "tree": False,
        "root": str(tmp_path / "root"), "sensors": ["ina3221", "process"], "limit_bytes": None,
        "cores": None, **changes,
    }  # fmt: skip
    return Sampler(config)


def replaced(made: Sampler, thread: threading.Thread) -> threading.Thread:
    """The thread that takes over once the supervisor has noticed that the given one hangs."""
    deadline = time.monotonic() + 10
    while made.generation == 0 and time.monotonic() < deadline:
        time.sleep(0.1)
        thread = made._replace_if_hung(thread)
    return thread


def column(samples, name: str) -> np.ndarray:  # type: ignore[no-untyped-def]
    line, at = samples.find(name)
    return line.values[:, at]


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler of an install without a C compiler."""
    monkeypatch.setattr("ergometer.sensors._beat.LIBRARY", Path("absent.so"))


@pytest.mark.usefixtures("interpreted")
def test_a_sensor_that_fails_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    made = sampler(tmp_path)
    good, calls = made.reads[0], 0

    def failing() -> bytes:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise OSError(19, "No such device")
        return good()

    made.groups[0].members[0] = (0, failing)
    for _ in range(8):
        for group in made.groups[:-1]:
            made._tick(group, 0)
    made._flush()
    samples = read_raw(tmp_path / "raw")
    power = column(samples, "power.VDD_IN")
    assert np.isfinite(power[:3]).all() and np.isnan(power[3:]).all()
    assert np.isfinite(column(samples, "process.cpu")).all()
    assert made.messages[0]["reason"] == "vanished: No such device"


@pytest.mark.usefixtures("interpreted")
def test_a_sensor_that_hangs_is_left_behind(tmp_path: Path) -> None:
    plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    made = sampler(tmp_path)
    release = threading.Event()
    hang = False

    def hanging() -> bytes:
        if hang:
            release.wait(20)
        return b"1000"

    made.groups[0].members[0] = (0, hanging)
    thread = made._start_thread()
    time.sleep(0.3)
    hang = True
    thread = replaced(made, thread)
    time.sleep(0.3)
    made.stopping = True
    thread.join()
    release.set()
    made._flush()
    samples = read_raw(tmp_path / "raw")
    assert "hung" in made.messages[0]["reason"]
    assert np.isnan(column(samples, "power.VDD_IN")[-1])
    cpu = column(samples, "process.cpu")
    assert np.isfinite(cpu[-10:]).all(), "the other sensors must go on"
    gap_s = np.diff(samples.timelines[0].t_ns).max() * 1e-9
    assert gap_s < 3


def beating(made: Sampler, seconds: float) -> None:
    thread = made._start_thread()
    time.sleep(seconds)
    made.stopping = True
    made.beat.interrupt()
    thread.join()
    made.stopping = False
    made._flush()


def test_compiled_and_interpreted_samplers_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    found = []
    foreign = tmp_path / "foreign.so"
    foreign.write_bytes(b"\x7fELF of another machine")
    for library in (LIBRARY, foreign):
        monkeypatch.setattr("ergometer.sensors._beat.LIBRARY", library)
        (root / RAIL).write_text("4321\n")
        made = sampler(tmp_path, sensors=None)
        assert isinstance(made.beat, CompiledBeat) == (library == LIBRARY)
        beating(made, 0.2)
        (root / RAIL).write_text("9000\n")
        made.beat.read_now()
        beating(made, 0.2)
        samples = read_raw(tmp_path / "raw")
        assert set(column(samples, "power.VDD_IN").round(3)) == {4.321, 9.0}
        assert np.diff(column(samples, "process.cpu")).min() >= 0
        assert made._live()["power.VDD_IN"] == 9.0
        found.append({channel.name for line in samples.timelines for channel in line.channels})
    assert found[0] == found[1]


def test_a_file_that_fails_in_the_compiled_beat_is_dropped_and_the_others_go_on(tmp_path: Path) -> None:
    plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    made = sampler(tmp_path)
    beating(made, 0.1)
    first = made.reads[0]
    assert isinstance(first, FileRead)
    reading, writing = os.pipe()
    os.dup2(reading, first.descriptors[0])  # pread() of a pipe fails
    beating(made, 0.1)
    beating(made, 0.1)
    samples = read_raw(tmp_path / "raw")
    power = column(samples, "power.VDD_IN")
    assert np.isfinite(power[0]) and np.isnan(power[-1])
    assert np.isfinite(column(samples, "process.cpu")).all()
    assert [message["reason"] for message in made.messages] == ["vanished: Illegal seek"]
    os.close(reading)
    os.close(writing)


def test_a_file_that_hangs_in_the_compiled_beat_is_left_behind(tmp_path: Path) -> None:
    plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    made = sampler(tmp_path)
    beating(made, 0.1)
    assert isinstance(made.beat, CompiledBeat) and not made._leave_hung()
    # No file here hangs on demand: the state is that of a thread which is still in pread() after two seconds.
    made.beat._state.reading, made.beat._state.since = 0, time.monotonic_ns() - 2_000_000_000
    assert made._leave_hung() and made.generation == 1
    beating(made, 0.1)
    assert "hung" in made.messages[0]["reason"]
    samples = read_raw(tmp_path / "raw")
    power = column(samples, "power.VDD_IN")
    assert np.isfinite(power[0]) and np.isnan(power[-1])
    assert np.isfinite(column(samples, "process.cpu")).all()


def test_a_buffer_that_is_full_is_written_before_its_time(tmp_path: Path) -> None:
    plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    made = sampler(tmp_path, period_s=0.001)
    assert isinstance(made.beat, CompiledBeat)
    made.beat._state.full = 200
    made.beat.run(time.monotonic_ns() + 60_000_000_000)
    assert made.beat.is_full()
    thread = made._start_thread()
    time.sleep(0.3)
    assert len(read_raw(tmp_path / "raw").timelines[0].t_ns) > 50, "before the half second in which it is written"
    made.stopping = True
    thread.join()


def test_a_file_that_hangs_when_opened_does_not_stop_the_sampler(tmp_path: Path) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    (root / RAIL).unlink()
    os.mkfifo(root / RAIL)
    made = sampler(tmp_path)
    assert {source.sensor for source in made.sources} == {"process"}
    assert "no answer" in made.missing["ina3221"]


def test_the_sampler_keeps_its_beat_and_knows_its_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERGO_SYSROOT", str(plant_over_real_proc(tmp_path / "root", JETSON_TX2)))
    sampling = Sampling(tmp_path / "raw", period_s=0.01, pid=os.getpid())
    time.sleep(1.0)
    sampling.flush()
    assert len(read_raw(tmp_path / "raw").timelines[0].t_ns) > 50
    sampling.stop()
    sampling.stop()
    samples = read_raw(tmp_path / "raw")
    assert 60 < len(samples.timelines[0].t_ns) < 140
    assert sampling.summary is not None and 0 < sampling.summary["cpu_s"] < sampling.summary["wall_s"]
    assert column(samples, "power.VDD_IN").mean() == pytest.approx(4.321)
    assert sampling.live["power.VDD_IN"] == pytest.approx(4.321)


def test_one_millisecond(tmp_path: Path) -> None:
    sampling = Sampling(tmp_path / "raw", period_s=0.001, pid=os.getpid(), sensors=["process"])
    time.sleep(0.7)
    sampling.stop()
    assert len(read_raw(tmp_path / "raw").timelines[0].t_ns) > 200


def test_values_that_change_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    monkeypatch.setenv("ERGO_SYSROOT", str(root))
    sampling = Sampling(tmp_path / "raw", period_s=0.005, pid=os.getpid(), sensors=["ina3221"])
    for text in ("4321", "nonsense", "9000"):
        with open(root / RAIL, "r+") as file:  # one write of one length: never seen half done
            file.write(f"{text:<9}\n")
        time.sleep(0.15)
    sampling.stop()
    samples = read_raw(tmp_path / "raw")
    power = column(samples, "power.VDD_IN")
    assert {round(float(value), 3) for value in power[np.isfinite(power)]} == {4.321, 9.0}
    assert np.isnan(power).any()
    assert "nonsense" in samples.notes[0]


def test_memory_of_a_process_with_threads_is_counted_once(tmp_path: Path) -> None:
    code = (
        "import threading, time\n"
        "for _ in range(8): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n"
        "print(1, flush=True)\ntime.sleep(30)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        made = sampler(tmp_path, pid=process.pid, sensors=["memory"], root="/")
        statm = made.reads[[source.key for source in made.sources].index("statm")]()
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.kill()
    resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
    assert made.sensors[0].parse(made.sources[0], statm)[0] == pytest.approx(resident, rel=0.02)


def test_the_cpu_time_of_children_is_kept_when_they_end() -> None:
    burn = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    reader = CpuTime(Processes(Path("/"), os.getpid(), tree=True, exclude=()))
    before = int(reader.read())
    with subprocess.Popen([sys.executable, "-c", burn]) as process:
        while process.poll() is None:
            time.sleep(0.05)
            reader.read()
    assert (int(reader.read()) - before) * 1e-9 == pytest.approx(0.55, abs=0.2)


@pytest.mark.usefixtures("interpreted")
def test_after_a_hang_the_others_values_are_those_of_now(tmp_path: Path) -> None:
    root = plant_over_real_proc(tmp_path / "root", JETSON_TX2)
    made = sampler(tmp_path, sensors=["ina3221"])
    second, release = made.groups[0].members[1][0], threading.Event()
    made._tick(made.groups[0], 0)
    made.groups[0].members[1] = (second, lambda: bytes(release.wait(20)))
    (root / RAIL).write_text("9000\n")  # changes in the very tick in which the other sensor hangs
    stuck = threading.Thread(target=made._tick, args=(made.groups[0], 0))
    stuck.start()
    thread = replaced(made, stuck)
    time.sleep(0.2)
    made.stopping = True
    thread.join()
    release.set()
    stuck.join()
    made._flush()
    assert column(read_raw(tmp_path / "raw"), "power.VDD_IN")[-1] == 9.0


def test_a_limit_is_watched_even_if_memory_was_not_asked_for(tmp_path: Path) -> None:
    made = sampler(tmp_path, root="/", sensors=["pressure"], limit_bytes=1 << 20)
    assert "statm" in [source.key for source in made.sources]


def test_cpu_time_of_ended_threads_is_kept() -> None:
    reader = CpuTime(Processes(Path("/"), os.getpid(), tree=False))

    def burn() -> None:
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass

    before = int(reader.read())
    for _ in range(10):  # each shorter than any refresh
        thread = threading.Thread(target=burn)
        thread.start()
        thread.join()
    assert (int(reader.read()) - before) * 1e-9 == pytest.approx(0.3, abs=0.1)


def test_a_thread_that_ends_does_not_count_the_others_twice(tmp_path: Path) -> None:
    for thread, waited in ((1, 100), (2, 200), (3, 300)):
        folder = tmp_path / f"proc/7/task/{thread}"
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(f"5 {waited} 1\n")
    reader = ThreadWait(tmp_path, Processes(tmp_path, 7, tree=False))
    assert int(reader.read()) == 600
    (tmp_path / "proc/7/task/2/schedstat").unlink()  # ends between being listed and being read
    assert int(reader.read()) == 600
    (tmp_path / "proc/7/task/2").rmdir()
    assert int(reader.read()) == 600


def test_children_are_found() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 20 & wait"]) as process:
        deadline = time.monotonic() + 5
        while len(descendants(Path("/"), process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        found = descendants(Path("/"), process.pid)
        for pid in reversed(found):
            os.kill(pid, 9)
    assert len(found) == 2


def test_the_sampler_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import os,sys,time\nfrom pathlib import Path\nfrom ergometer.run.sampling import Sampling\n"
        f"s = Sampling(Path({str(tmp_path / 'raw')!r}), period_s=0.01, pid=os.getpid())\nprint(s.pid, flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_a_sampler_that_cannot_write_says_so(tmp_path: Path) -> None:
    with pytest.raises(ErgoError, match="cannot start"):
        Sampling(tmp_path / "absent/raw", period_s=0.01, pid=os.getpid())


def test_a_call_that_hangs_is_cut_off() -> None:
    with pytest.raises(TimeoutError, match="no answer"):
        within(0.05, lambda: time.sleep(5))
    with pytest.raises(KeyError):
        within(1, lambda: {}["x"])
    assert within(1, lambda: 7) == 7


def test_the_header_holds_the_calibration(tmp_path: Path) -> None:
    plant_over_real_proc(tmp_path / "root", PHONE | LAPTOP)
    sampler(tmp_path, sensors=["battery"])
    header = json.loads((tmp_path / "raw").read_bytes().split(b"\n")[0])
    assert header["sources"][0]["facts"]["calibration"]["battery"] == {"ampere": 1e-6, "sign": 1.0, "sign_known": True}
