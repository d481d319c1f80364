"""What the sensor of NVIDIA GPUs reads, from an NVML that the test plays."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ergometer.core.sensor import Channel, Target
from ergometer.sensors.nvml import SENSOR


class NVMLError(Exception):
    pass


def _library(*, capability: tuple[int, int], tells_now: bool) -> Any:
    """100 W in the mean, 700 W at present; all other readings are not supported."""

    def refuse(*_: Any) -> int:
        raise NVMLError("not supported")

    def fields(_: Any, wanted: list[int]) -> list[Any]:
        assert wanted == [186]
        return [SimpleNamespace(nvmlReturn=0 if tells_now else 3, value=SimpleNamespace(uiVal=700_000))]

    names = ("UtilizationRates", "ClockInfo", "Temperature", "CurrentClocksThrottleReasons", "MemoryInfo")
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_SUCCESS=0,
        NVML_FI_DEV_POWER_INSTANT=186,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _: "GPU of the test",
        nvmlDeviceGetCudaComputeCapability=lambda _: capability,
        nvmlDeviceGetFieldValues=fields,
        nvmlDeviceGetPowerUsage=lambda _: 100_000,
        nvmlDeviceGetTotalEnergyConsumption=refuse,
        **{f"nvmlDeviceGet{name}": refuse for name in names},
    )


def _power(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], *, tells_now: bool) -> tuple[float, Channel]:
    monkeypatch.setitem(sys.modules, "pynvml", _library(capability=capability, tells_now=tells_now))
    target = Target(root=Path("/"))
    (source,) = SENSOR.sources(target)
    (channel,) = source.channels
    return float(SENSOR.open(source, target)()) * channel.scale, channel


def test_the_present_power_is_read_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    watts, channel = _power(monkeypatch, (9, 0), tells_now=True)
    assert (watts, channel.modelled) == (700, False)
    assert "mean" not in SENSOR.probe(Path("/")).reason


@pytest.mark.parametrize(("capability", "averaged"), [((7, 5), False), ((8, 0), False), ((8, 6), True), ((9, 0), True)])
def test_a_mean_of_the_last_second_makes_energy_estimated(
    capability: tuple[int, int], averaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    watts, channel = _power(monkeypatch, capability, tells_now=False)
    assert (watts, channel.modelled) == (100, averaged)
    assert ("mean of the last second" in SENSOR.probe(Path("/")).reason) is averaged
