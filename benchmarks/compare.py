"""How often `ergo compare` is wrong, on runs of this machine.

Sixty runs of the same spec, one after the other. A hundred times, two sets of ten of them are compared: they are the
same, so a difference is a false alarm. Then thirty against the other thirty, whose steps are made 5 % longer: that must
be found; how often it is where the runs are dealt out at random depends on how much runs differ here. The peer is
what comparing all steps as if they were independent would say.
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path

from ergometer.analyze.compare import compare, mann_whitney
from ergometer.store.database import Store
from ergometer.store.spans import SpanTable

RUNS, SET, TRIALS, CHANGE = 60, 10, 100, 1.05
COMMAND = ["run", "lenet", "--batch", "16", "--threads", "1", "--time", "2s", "--trace-steps", "0"]


def measured() -> list[list[float]]:
    """The timed steps of every run."""
    command = [sys.executable, "-m", "ergometer", *COMMAND, "--repeat", str(RUNS)]
    subprocess.run(command, capture_output=True, check=True)
    with Store() as store:
        folders = [Path(record.directory) for record in store.query("status=ok")]
    tables = [SpanTable.load(folder / "spans.npz").select(kind="step", name="timed") for folder in folders]
    return [list(table.duration_s) for table in tables]


def main() -> None:
    runs = measured()
    draw = random.Random(0)
    alarms = naive = 0
    for _ in range(TRIALS):
        chosen = draw.sample(runs, 2 * SET)
        first, second = chosen[:SET], chosen[SET:]
        alarms += compare(first, second).differs
        naive += mann_whitney([*chain(*first)], [*chain(*second)]) < 0.05
    verdict = "ok" if alarms <= TRIALS // 20 else "ABOVE"
    said = f"{TRIALS - alarms} of {TRIALS} no difference, bound 95: {verdict}; step by step {TRIALS - naive}"
    print(f"compare same spec, {SET} runs against {SET}: {said}")
    found = compare(runs[::2], changed(runs[1::2]))
    verdict = "ok" if found.differs else "MISSED"
    print(f"compare 5 %, n = {found.n[0]}: ratio {found.ratio:.3f} ({found.low:.3f} .. {found.high:.3f}): {verdict}")
    halves = [draw.sample(runs, RUNS) for _ in range(TRIALS)]
    power = sum(compare(half[: RUNS // 2], changed(half[RUNS // 2 :])).differs for half in halves)
    medians = [statistics.median(run) for run in runs]
    spread = statistics.stdev(medians) / statistics.mean(medians)
    print(f"compare 5 %, runs drawn at random: found in {power} of {TRIALS}, where runs differ by {100 * spread:.1f} %")


def changed(runs: list[list[float]]) -> list[list[float]]:
    return [[CHANGE * value for value in run] for run in runs]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as home:
        os.environ["ERGO_HOME"] = home
        main()
