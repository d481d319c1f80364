"""What is done in processes of its own."""

import subprocess
import sys

import pytest

from ergometer.core.errors import UnavailableError
from ergometer.run import environment, lowering


def test_a_step_that_hangs_is_given_up() -> None:
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE) as process:
        try:
            with pytest.raises(UnavailableError, match=r"did not end in 0\.2 s"):
                lowering._wait(process, None, 0.2)
        finally:
            process.kill()


@pytest.mark.parametrize(("code", "why"), [("time.sleep(60)", "did nothing"), ("any(iter(int, 1))", "did not end")])
def test_what_hangs_is_told_from_what_takes_long(code: str, why: str) -> None:
    with subprocess.Popen([sys.executable, "-c", f"import time; {code}"], stdout=subprocess.PIPE) as process:
        try:
            with pytest.raises(UnavailableError, match=why):
                lowering._wait(process, None, 2.0, 0.5)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import time; time.sleep(60)", "the driver of opencl does not answer"),
        ("import os; os.abort()", "the driver of opencl crashes (SIGABRT)"),
        ("raise OSError('no such library')", "the driver of opencl does not work (OSError: no such library)"),
    ],
)
def test_a_driver_that_goes_wrong_when_it_is_asked(code: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_ASK", code)
    monkeypatch.setattr(environment, "_LONGEST_S", 2.0)
    environment._asked.cache_clear()
    try:
        probe = environment.probe_of("tinygrad", "opencl")
    finally:
        environment._asked.cache_clear()
    assert not probe.ok and probe.reason == words and "remove" not in probe.remedy
