"""The best setting through the command line: searched for, shown, remembered and used."""

import json
import os
import signal
import time
from pathlib import Path
from statistics import median_low

import pytest

from tests.conftest import Ergo, children, one_sentence

pytestmark = pytest.mark.xdist_group("tune")


def test_what_was_found_is_remembered(ergo: Ergo) -> None:
    asked = ("tune", "lenet", "--batch", "8", "--engine", "mnn,litert", "--time", "12s")
    done = ergo(*asked, "--json", "-", timeout=170)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    tried = [trial for trial in found["trials"] if trial["values"]]
    (best,) = (trial for trial in tried if not trial["why"])
    slower = [trial for trial in tried if trial["why"] == "slower"]
    assert all(median_low(best["values"]) <= median_low(trial["values"]) for trial in slower)
    assert found["best"]["engine"] in ("mnn", "litert") and found["took_s"] < 12 + 25
    again = ergo(*asked)
    assert again.returncode == 0 and "remembered from an earlier search" in again.stdout
    assert "torch" not in again.stdout.split("best")[0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("tune", "lenet", "--goal", "beauty"), "time, energy, memory"),
        (("tune", "lenet", "--engine", "mnm"), "did you mean mnn"),
        (("tune", "lenet", "--time", "0s"), "give 1s or more"),
        (("tune", "lenet", "--engine", "ncnn"), "no engine can run lenet here: ncnn: it does infer alone"),
        (("run", "lenet", "--engine", "auto", "--goal", "beauty"), "time, energy, memory"),
        (("run", "lenet", "--engine", "auto", "--threads", "2"), "leave out --threads and --cores"),
        (("run", "lenet", "--engine", "torch", "--accelerate", "forward"), "the whole step on one device"),
        (("run", "lenet", "--engine", "tinygrad", "--accelerate", "all"), "it has both, forward"),
    ],
)
def test_a_wrong_request_gets_one_sentence(ergo: Ergo, arguments: tuple[str, ...], words: str) -> None:
    assert words in one_sentence(ergo(*arguments))


SLOW = """
import time
import torch

class Slow(torch.nn.Linear):
    def forward(self, x):
        time.sleep({seconds})
        return super().forward(x.flatten(1))

def make():
    return Slow(12, 10)
"""


def slow(folder: Path, seconds: float) -> tuple[str, ...]:
    """A search for a network whose forward pass takes so long."""
    (folder / "net.py").write_text(SLOW.format(seconds=seconds))
    return "tune", f"{folder / 'net.py'}:make", "--input", "3x2x2", "--classes", "10", "--engine", "torch"


@pytest.mark.alone
def test_the_time_holds_for_a_network_that_takes_longer(ergo: Ergo, tmp_path: Path) -> None:
    asked = slow(tmp_path, 0.7)
    done = ergo(*asked, "--time", "2s", timeout=60)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "no setting could be measured in 2 s: the worker took longer than was left for it" in done.stderr
    done = ergo(*asked, "--time", "9s", "--json", "-", timeout=60)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["took_s"] < 9 + 1.5 and any(trial["values"] for trial in found["trials"])


@pytest.mark.slow
def test_a_trial_that_hangs_is_given_up_with_a_remedy(ergo: Ergo, tmp_path: Path) -> None:
    done = ergo(*slow(tmp_path, 99), "--time", "25s", timeout=60)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "said nothing for 10 s" in done.stderr and "raise --time of ergo tune" in done.stderr


@pytest.mark.alone
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_search_that_is_ended_leaves_nothing_behind(ergo: Ergo, number: int, status: int) -> None:
    process = ergo.start("tune", "lenet", "--engine", "torch")
    workers: list[int] = []
    while len(workers) < 2 and process.poll() is None:  # one of the two is stopped, since it is the other's turn
        time.sleep(0.1)
        workers = children(process.pid, "ergometer.run.worker")
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == status and not list((ergo.home / "tuned").glob("*"))
    end = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.alone
def test_a_worker_that_is_killed_between_its_turns_is_out(ergo: Ergo) -> None:
    process = ergo.start("tune", "lenet", "--engine", "torch", "--time", "12s")
    workers: list[int] = []
    while len(workers) < 2 and process.poll() is None:
        time.sleep(0.1)
        workers = children(process.pid, "ergometer.run.worker")
    os.kill(min(workers), signal.SIGKILL)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 0 and "Traceback" not in errors
    assert "failed: the worker was killed by SIGKILL during turns" in output
