"""Copies between devices, on PoCL as two CPUs beside tinygrad's own."""

import os
import subprocess
import sys

import pytest

from ergometer.run.environment import probe_of

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
