"""An accelerator whose driver crashes or hangs, or whose memory is too small: a row, and the sweep goes on."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ergometer.core import registry
from tests.conftest import Ergo, one_sentence

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(
        not registry.load("engines", "tinygrad")().probe("opencl").ok, reason="tinygrad has no OpenCL here"
    ),
]

VENDORS = Path("/etc/OpenCL/vendors")
QUICK = ("--engine", "tinygrad", "--batch", "4", "--steps", "5", "--warmup", "1", "--trace-steps", "0")
# A driver that OpenCL loads beside the others. It goes wrong in processes whose command line has the word.
DRIVER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void start(void) {
  static char line[65536];
  FILE* file = fopen("/proc/self/cmdline", "rb");
  size_t length = file ? fread(line, 1, sizeof line - 1, file) : 0;
  for (size_t i = 0; i < length; i++) if (!line[i]) line[i] = ' ';
  const char *word = getenv("PLANTED_IN"), *how = getenv("PLANTED");
  if (!word || !how || !strstr(line, word)) return;
  if (!strcmp(how, "crash")) *(volatile int*)0 = 1;
  for (;;) pause();
}
"""
PROBE, WORKER = "engine.probe", "ergometer.run.worker"


@pytest.fixture(scope="module")
def vendors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The drivers that are installed here, and the planted one."""
    folder = tmp_path_factory.mktemp("vendors")
    for icd in VENDORS.glob("*.icd"):
        (folder / icd.name).write_text(icd.read_text())
    source, library = folder / "driver.c", folder / "libplanted.so"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    (folder / "planted.icd").write_text(f"{library}\n")
    return folder


def records(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_a_driver_that_crashes_when_it_is_asked(ergo: Ergo, vendors: Path) -> None:
    planted = {"OCL_ICD_VENDORS": str(vendors), "PLANTED": "crash", "PLANTED_IN": PROBE}
    said = one_sentence(ergo("run", "conv_only", *QUICK, "--device", "opencl", **planted))
    assert "crashes (SIGSEGV)" in said and "install it again" in said
    listed = ergo("list", "engines", **planted)
    assert listed.returncode == 0 and "SIGSEGV" in listed.stdout


@pytest.mark.slow
def test_a_driver_that_crashes_the_worker_is_a_row_and_the_sweep_goes_on(ergo: Ergo, vendors: Path) -> None:
    planted = {"OCL_ICD_VENDORS": str(vendors), "PLANTED": "crash", "PLANTED_IN": WORKER}
    done = ergo("run", "conv_only", *QUICK, "--device", "opencl,cpu", "--json", "-", timeout=300, **planted)
    crashed, fine = records(done)
    assert done.returncode == 1 and crashed["status"] == "failed" and "SIGSEGV" in crashed["reason"]
    assert fine["status"] == "ok" and fine["spec"]["device"] == "cpu"


@pytest.mark.slow
def test_a_driver_that_hangs_the_worker_is_a_row(ergo: Ergo, vendors: Path) -> None:
    planted = {"OCL_ICD_VENDORS": str(vendors), "PLANTED": "hang", "PLANTED_IN": WORKER}
    command = ("run", "conv_only", *QUICK, "--device", "opencl", "--hang-timeout", "5s", "--json", "-")
    (hung,) = records(ergo(*command, timeout=300, **planted))
    assert hung["status"] == "failed" and "said nothing for 5 s during load" in hung["reason"]


@pytest.mark.slow
@pytest.mark.skipif("pthread" not in registry.load("engines", "tinygrad")().probe("opencl").reason, reason="no PoCL")
def test_an_accelerator_without_enough_memory_is_a_row_and_the_sweep_goes_on(ergo: Ergo) -> None:
    command = ("run", "conv_only:width=256", *QUICK, "--device", "opencl", "--batch", "512,2", "--json", "-")
    large, small = records(ergo(*command, timeout=300, POCL_MEMORY_LIMIT="1"))
    assert large["status"] == "out_of_memory", large["reason"]
    assert small["status"] == "ok"
