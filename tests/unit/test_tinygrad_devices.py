"""Copies between devices, on PoCL as two CPUs beside tinygrad's own; and what is said of devices that are not there."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ergometer.core.probe import Probe
from ergometer.engines.tinygrad import _devices as devices
from ergometer.run.environment import probe_of
from tests.trees import plant

COPIES = """
import numpy as np
from ergometer.engines.tinygrad import _devices as devices

devices.set_environment()
if devices.find("opencl") != ("CL:1", "CL"):
    raise SystemExit("OpenCL has no CPU beside its accelerator here")
from tinygrad import Tensor
from tinygrad.helpers import DEV

DEV.value = "CL"
for there, here in (("CL", "CL:1"), ("CL:1", "CL"), ("CL", "CPU"), ("CPU", "CL")):
    wanted = np.random.default_rng(0).random(100_003, np.float32)
    source = (Tensor(wanted, device=there) * 2).realize()
    target = Tensor(np.zeros_like(wanted), device=here).realize()
    devices.copy(target.uop.base.buffer, source.uop.base.buffer)
    source.assign(source * 0).realize()  # what was copied stays
    assert (target.numpy() == 2 * wanted).all(), (there, here)
    assert ((target + 1).numpy() == 2 * wanted + 1).all(), (there, here)
"""


def test_copies_between_devices_are_whole() -> None:
    for device in ("cpu", "opencl"):
        probe = probe_of("tinygrad", device)
        if not probe.ok:
            pytest.skip(probe.reason)
    environment = os.environ | {"POCL_DEVICES": "pthread basic"}
    found = subprocess.run([sys.executable, "-c", COPIES], env=environment, capture_output=True, text=True)
    if "has no CPU" in found.stderr:
        pytest.skip(found.stderr.strip())
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("vendors", "words"),
    [
        ([], "for a GPU: install its driver"),
        (["0x1002", "0x10de"], "for the GPU: apt install mesa-opencl-icd nvidia-opencl-icd"),
        (["0x8086", "0x1af4"], "for the GPU: apt install intel-opencl-icd"),
    ],
)
def test_the_package_that_brings_opencl_is_named(
    vendors: list[str], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cards = {f"sys/class/drm/card{number}/device/vendor": vendor for number, vendor in enumerate(vendors)}
    monkeypatch.setenv("ERGO_SYSROOT", str(plant(tmp_path, cards)))
    monkeypatch.setattr(devices, "_opencl_devices", lambda: ([], []))
    probe = devices.probe("opencl", Probe(True, "0.14"))
    assert not probe.ok and probe.reason == "OpenCL has no device here"
    assert probe.remedy == f"{words}; for the CPU: apt install ocl-icd-libopencl1 pocl-opencl-icd"


@pytest.mark.parametrize("gpus", [0, 1])
def test_the_package_that_brings_cuda_is_named(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(found: Any) -> int:
        found._obj.value = gpus
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count)
    monkeypatch.setattr(devices, "_library", lambda *names: driver)
    monkeypatch.setattr(devices, "_compiles_cuda", lambda: False)
    probe = devices.probe("cuda", Probe(True, "0.14"))
    assert not probe.ok and ("nvidia-cuda-toolkit" if gpus else "apt install nvidia-driver") in probe.remedy


def test_a_compiler_for_cuda_that_is_not_there_is_noticed() -> None:
    nvrtc = pytest.importorskip("tinygrad.runtime.autogen.nvrtc")
    if devices._compiles_cuda():
        pytest.skip("NVRTC is here")
    with pytest.raises(AttributeError):
        nvrtc.nvrtcVersion(None, None)
