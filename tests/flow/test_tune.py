"""The best setting through the command line: searched for, shown, remembered and used."""

import json

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
    assert all(min(best["values"]) <= min(trial["values"]) for trial in tried if trial["why"] == "slower")
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
