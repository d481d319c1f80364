"""The C library keeps what was freed, or gives it back: in processes of their own, since it is set for good."""

import subprocess
import sys

import pytest

from ergometer.core.heap import is_glibc

pytestmark = pytest.mark.skipif(not is_glibc(), reason="needs glibc")

# Ten times a block of 64 MB is taken, written to and freed: the pages that the system had to give.
FAULTS = """
import resource, sys
from ergometer.core.heap import keep_freed_memory, return_freed_memory
if "keep" in sys.argv:
    keep_freed_memory()
def block():
    bytearray(64 << 20)[:: 4096] = b"x" * (16 << 10)
block()
if "return" in sys.argv:
    return_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    block()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*words: str) -> int:
    return int(subprocess.run([sys.executable, "-c", FAULTS, *words], check=True, capture_output=True).stdout)


def test_kept_memory_is_not_taken_anew() -> None:
    assert 10 * faults("keep") < faults()


def test_kept_memory_can_be_returned_once() -> None:
    assert 5 * faults("keep") < faults("keep", "return") < faults() / 5
