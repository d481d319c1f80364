"""The best setting through the command line: searched for, shown, remembered and used."""

import json
from pathlib import Path
from statistics import median_low

import pytest

from tests.conftest import Ergo, one_sentence

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
        time.sleep(0.7)
        return super().forward(x.flatten(1))

def make():
    return Slow(12, 10)
"""


@pytest.mark.alone
def test_the_time_holds_for_a_network_that_takes_longer(ergo: Ergo, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SLOW)
    asked = ("tune", f"{tmp_path / 'net.py'}:make", "--input", "3x2x2", "--classes", "10", "--engine", "torch")
    done = ergo(*asked, "--time", "2s", timeout=60)
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "no setting could be measured in 2 s: failed: it took longer than was left for it" in done.stderr
    done = ergo(*asked, "--time", "9s", "--json", "-", timeout=60)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["took_s"] < 9 + 1.5 and any(trial["values"] for trial in found["trials"])
