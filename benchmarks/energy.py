"""How true the joules are: a power file that jumps between 9 W and 1 W every 30 ms, read at 100 Hz.

python benchmarks/energy.py [SECONDS]
The truth is integrated from the moments at which the file was really written.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ergometer.analyze.join import totals, windows
from ergometer.analyze.raw import read_raw
from ergometer.run.sampling import Sampling

# Writes the file every half period and prints when, so that its own jitter is part of the truth.
WRITER = """
import os, sys, time
fd, half, end = os.open(sys.argv[1], os.O_WRONLY), float(sys.argv[2]), time.monotonic() + float(sys.argv[3])
edges, at, high = [], time.monotonic(), False
try:
    os.setpriority(os.PRIO_PROCESS, 0, -10)
except PermissionError:
    pass
while at < end:
    high = not high
    os.pwrite(fd, b"9000\\n" if high else b"1000\\n", 0)
    edges.append((time.monotonic_ns(), 9.0 if high else 1.0))
    at += half
    time.sleep(max(0, at - time.monotonic()))
for edge in edges:
    print(*edge)
"""
HALF_PERIOD_S = 0.030


def truth(edges: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Joules of the step function between each start and end."""
    stamps, watts = edges[:, 0], edges[:, 1]
    total = np.concatenate([[0.0], np.cumsum(watts[:-1] * np.diff(stamps) * 1e-9)])

    def at(t: np.ndarray) -> np.ndarray:
        index = np.searchsorted(stamps, t, side="right") - 1
        return total[index] + watts[index] * (t - stamps[index]) * 1e-9

    return at(end_ns) - at(start_ns)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 40.0
    with tempfile.TemporaryDirectory() as name:
        rail = Path(name) / "root/sys/bus/i2c/drivers/ina3221x/0-0040/iio:device0"
        rail.mkdir(parents=True)
        (rail / "rail_name_0").write_text("VDD_IN\n")
        (rail / "in_power0_input").write_text("1000\n")
        os.environ["ERGO_SYSROOT"] = f"{name}/root"
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(rail / "in_power0_input"), str(HALF_PERIOD_S), str(seconds + 2)],
            stdout=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.5)
        raw = Path(name) / "raw"
        sampling = Sampling(raw, period_s=0.01, pid=os.getpid(), sensors=["ina3221"])
        time.sleep(seconds)
        sampling.stop()
        output, _ = writer.communicate()
        edges = np.array([[float(field) for field in line.split()] for line in output.splitlines()])
        timeline = read_raw(raw).timelines[0]
        table = totals(timeline)
        rate = (len(timeline.t_ns) - 1) / (timeline.t_ns[-1] - timeline.t_ns[0]) * 1e9
        for length_s, bound in ((1.0, 2), (5.0, 1)):
            first, last = timeline.t_ns[0], timeline.t_ns[-1] - int(length_s * 1e9)
            starts = np.arange(first, last, int(0.137e9))
            ends = starts + int(length_s * 1e9)
            true = truth(edges, starts, ends)
            errors = 100 * (windows(table, starts, ends)[:, 0] - true) / true
            print(
                f"energy.{length_s:.0f}s: {len(starts)} windows of {length_s:.0f} s at {rate:.1f} Hz, "
                f"error {errors.min():+.2f} .. {errors.max():+.2f} %, rms {np.sqrt((errors**2).mean()):.2f} % "
                f"(within {bound} %)"
            )


if __name__ == "__main__":
    main()
