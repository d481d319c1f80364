"""How long `ergo --help` takes against the interpreter alone.

python benchmarks/startup.py
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path


def median_s(command: list[str], repeats: int = 40) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    ergo = str(Path(sys.executable).with_name("ergo"))
    bare, help_time = median_s([sys.executable, "-c", "pass"]), median_s([ergo, "--help"])
    print(f"startup.help: ergo --help takes {help_time / bare:.2f}x the time of python -c pass (at most 3x)")


if __name__ == "__main__":
    main()
