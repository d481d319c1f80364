"""What observing costs: the sampler's share of a core, a psutil sampler of the same sources, and the slowdown.

python benchmarks/observer.py [SECONDS]
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RATE_HZ = 100

# psutil where it has the reading, a plain open() where it has not: what a tool built on psutil does.
PSUTIL_SAMPLER = """
import json, sys, time
import psutil
pid, period, files, seconds = int(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3]), float(sys.argv[4])
process, rows = psutil.Process(pid), []
end = time.monotonic() + seconds
next_at = time.monotonic()
started = time.process_time()
while time.monotonic() < end:
    row = [time.monotonic_ns(), psutil.cpu_times(percpu=True), process.cpu_times(), process.memory_info()]
    for path in files:
        with open(path) as file:
            row.append(file.read())
    rows.append(row)
    next_at += period
    time.sleep(max(0, next_at - time.monotonic()))
print(json.dumps({"cpu": time.process_time() - started, "n": len(rows)}))
"""

# The least that a process of its own can cost: it wakes up 100 times a second and reads nothing.
C_LOOP = r"""
#include <time.h>
int main(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    for (;;) {
        at.tv_nsec += 1000000000 / RATE_HZ;
        if (at.tv_nsec >= 1000000000) at.tv_nsec -= 1000000000, at.tv_sec++;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, 0);
    }
}
"""

JOB = """
import numpy as np
a = np.random.default_rng(0).standard_normal((192, 192)).astype(np.float32)
while True:
    a = a @ a
    a /= np.abs(a).max()
"""


def make_tree(root: Path) -> list[Path]:
    """The real /proc, with a sysfs of a small board: nine sources beside cores, process and memory."""
    (root / "proc").symlink_to("/proc")
    files = {}
    chip = root / "sys/bus/i2c/devices/1-0040/hwmon/hwmon0"
    files[chip / "name"] = "ina3221"
    for number, rail in enumerate(("VDD_IN", "VDD_CPU", "VDD_SOC"), 1):
        files |= {
            chip / f"in{number}_label": rail,
            chip / f"in{number}_input": "5000",
            chip / f"curr{number}_input": "900",
        }
    for number in range(4):
        zone = root / f"sys/class/thermal/thermal_zone{number}"
        files |= {zone / "type": f"zone{number}", zone / "temp": "45000"}
    for number in range(2):
        policy = root / f"sys/devices/system/cpu/cpufreq/policy{number}"
        files |= {
            policy / "scaling_cur_freq": "1800000",
            policy / "related_cpus": str(number),
            policy / "scaling_governor": "x",
        }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return [path for path in files if path.name.endswith(("_input", "temp", "cur_freq"))]


def sample(root: Path, folder: Path, pid: int, seconds: float) -> tuple[float, float, int]:
    """(share of a core, rate, sources) of our sampler."""
    from ergometer.analyze.metrics import observer_metrics
    from ergometer.analyze.raw import read_raw
    from ergometer.run.sampling import Sampling

    os.environ["ERGO_SYSROOT"] = str(root)
    sampling = Sampling(folder / "raw", period_s=1 / RATE_HZ, pid=pid)
    time.sleep(seconds)
    sampling.stop()
    samples = read_raw(folder / "raw")
    metrics = observer_metrics(samples, sampling.cost, 1 / RATE_HZ)
    sources = json.loads((folder / "raw").read_bytes().split(b"\n")[0])["sources"]
    return metrics["observer.cpu"].value / 100, metrics["observer.rate"].value, len(sources)


def compare(what: str, pid: int, threads: int, pairs: int) -> None:
    """LeNet's step time with the process running over with it stopped, in short windows by turns; 95 % interval."""
    from _loaded import load
    from ergometer.analyze.statistics import median_interval

    engine = load("lenet", 16, threads)

    def window(running: bool) -> float:
        os.kill(pid, signal.SIGCONT if running else signal.SIGSTOP)
        time.sleep(0.012)
        times, end = [], time.monotonic() + 0.05
        while time.monotonic() < end:
            marks = engine.step().marks
            times.append(marks[-1] - marks[0])
        return sum(times) / len(times)

    window(True)
    ratios = []
    for number in range(pairs):
        order = (True, False) if number % 2 else (False, True)
        means = {running: window(running) for running in order}
        ratios.append(means[True] / means[False])
    os.kill(pid, signal.SIGCONT)
    middle, low, high = median_interval(ratios)
    assert low is not None and high is not None
    print(f"observer.slowdown: step time with / without {what}: {middle:.4f}, 95 % interval {low:.4f} .. {high:.4f}")


def slowdown(root: Path, folder: Path) -> None:
    from ergometer.core import registry
    from ergometer.run.sampling import Sampling

    os.environ["ERGO_SYSROOT"] = str(root)
    cores = len(os.sched_getaffinity(0))
    raw = folder / "raw"
    powerless = [name for name in registry.names("sensors") if name != "ina3221"]
    sampling = Sampling(raw, period_s=1 / RATE_HZ, pid=os.getpid(), sensors=powerless)
    what = f"the sampler of {sampling.sources} sources (within 1 %)"
    compare(f"{what}, one core left free", sampling.pid, max(1, cores - 1), 500)
    compare(f"{what}, all cores busy", sampling.pid, cores, 6000)
    sampling.stop()
    sampling = Sampling(raw, period_s=1 / RATE_HZ, pid=os.getpid())
    compare(f"the sampler of {sampling.sources}, power rails among them, all cores busy", sampling.pid, cores, 1500)
    sampling.stop()
    compiler = shutil.which("cc")
    if compiler is None:
        print("observer.slowdown: a process that only wakes up was not measured: there is no C compiler (cc)")
        return
    command = [compiler, "-O2", f"-DRATE_HZ={RATE_HZ}", "-x", "c", "-", "-o", str(folder / "loop")]
    subprocess.run(command, input=C_LOOP.encode(), check=True)
    waker = subprocess.Popen([folder / "loop"])
    compare("a process that only wakes up on the exact beat, all cores busy", waker.pid, cores, 1500)
    waker.kill()
    waker.wait()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "root").mkdir()
        files = make_tree(folder / "root")
        single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        job = subprocess.Popen([sys.executable, "-c", JOB], env={**os.environ, **single})
        try:
            ours, peers = [], []
            for _ in range(3):
                share, rate, sources = sample(folder / "root", folder, job.pid, seconds)
                ours.append(share)
                arguments = [str(job.pid), str(1 / RATE_HZ), json.dumps([str(path) for path in files]), str(seconds)]
                command = [sys.executable, "-c", PSUTIL_SAMPLER, *arguments]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                peers.append(json.loads(done.stdout)["cpu"] / seconds)
        finally:
            job.kill()
            job.wait()
        mine, peer = statistics.median(ours), statistics.median(peers)
        print(f"observer.cpu: {100 * mine:.2f} % of one core at {rate:.0f} Hz with {sources} sources (at most 2 %)")
        print(f"observer.peer: psutil sampler costs {100 * peer:.2f} %, {peer / mine:.1f}x ours (at least 2x)")
        slowdown(folder / "root", folder)


if __name__ == "__main__":
    main()
