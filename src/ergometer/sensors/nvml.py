"""Power, utilisation, clock, temperature and throttling of NVIDIA GPUs, from NVML."""

from pathlib import Path
from typing import Any

from ergometer.core.gpu import NVIDIA_DRIVER
from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Read, Sensor, Source, Target

# Reasons that mean held back by heat or power; the others (idle, application clocks, sync) do not.
_SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80


def _library() -> Any:
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def _power_now(nvml: Any, handle: Any) -> int:
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
    if field.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(field.nvmlReturn)
    return int(field.value.uiVal)


def _tells_power_now(nvml: Any, handle: Any) -> bool:
    try:
        _power_now(nvml, handle)
    except nvml.NVMLError:
        return False
    return True


def _is_averaged(nvml: Any, handle: Any) -> bool:
    """Whether power is had only as the mean of the last second: from Ampere on (but for GA100), with an old driver."""
    try:
        if _tells_power_now(nvml, handle):
            return False
        nvml.nvmlDeviceGetPowerUsage(handle)
        return tuple(nvml.nvmlDeviceGetCudaComputeCapability(handle)) > (8, 0)
    except nvml.NVMLError:
        return False  # it tells no power


def _readers(nvml: Any, handle: Any, *, now: bool) -> dict[str, Any]:
    """Channel stem -> a function that reads it. now: it tells the present power."""
    return {
        "power": (lambda: _power_now(nvml, handle)) if now else lambda: nvml.nvmlDeviceGetPowerUsage(handle),
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "frequency": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttle": lambda: int(bool(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & _SLOWED)),
        "memory": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
        "energy": lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle),
    }


def _channel(stem: str, index: int, *, averaged: bool) -> Channel:
    gpu = f"gpu{index}"
    return {
        "power": Channel(name=f"power.{gpu}", unit="W", scale=1e-3, scope="component", modelled=averaged),
        "utilisation": Channel(name=f"gpu_utilisation.{index}", unit="%"),
        "frequency": Channel(name=f"gpu_frequency.{index}", unit="Hz", scale=1e6),
        "temperature": Channel(name=f"temperature.{gpu}", unit="°C"),
        "throttle": Channel(name=f"throttle.{gpu}", unit="state"),
        "memory": Channel(name=f"gpu_memory.{index}", unit="B"),
        "energy": Channel(name=f"total_energy.{gpu}", unit="J", kind="counter", scale=1e-3),
    }[stem]


class Nvml(Sensor):
    name = "nvml"
    title = "power, load, clock, temperature of NVIDIA GPUs (NVML)"
    measures = "power, utilisation, frequency, temperature, throttling"

    def probe(self, root: Path) -> Probe:
        if root != Path("/"):
            return Probe(False, "ERGO_SYSROOT is a recorded tree: NVML answers for the live device only")
        try:
            nvml = _library()
        except ImportError:
            return Probe(False, "nvidia-ml-py is not installed", "pip install 'ergometer[nvidia]'")
        except Exception as error:  # noqa: BLE001 - NVMLError's classes exist only once the library has loaded
            return Probe(False, f"NVML: {error}", NVIDIA_DRIVER)
        count = nvml.nvmlDeviceGetCount()
        if not count:
            return Probe(False, "NVML sees no GPU", "check nvidia-smi")
        working = [self._working(nvml, index) for index in range(count)]
        if not any(working):
            return Probe(False, "NVML supports none of its readings on this GPU", "Jetson: see jetson_gpu")
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        names = [str(nvml.nvmlDeviceGetName(handle)) for handle in handles]
        power = "power refreshed about every 100 ms"
        if any(_is_averaged(nvml, handle) for handle in handles):
            power = "power is the mean of the last second, so energy is estimated: a newer driver tells the present one"
        return Probe(True, f"{', '.join(names)}: {', '.join(working[0])}; {power}")

    def _working(self, nvml: Any, index: int) -> list[str]:
        found = []
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        for stem, read in _readers(nvml, handle, now=_tells_power_now(nvml, handle)).items():
            try:
                read()
            except nvml.NVMLError:
                continue  # this GPU does not have that reading
            found.append(stem)
        return found

    def sources(self, target: Target) -> list[Source]:
        if not self.probe(target.root).ok:
            return []
        nvml, sources = _library(), []
        for index in range(nvml.nvmlDeviceGetCount()):
            stems = self._working(nvml, index)
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            now, averaged = _tells_power_now(nvml, handle), _is_averaged(nvml, handle)
            state = [stem for stem in stems if stem not in ("power", "energy")]
            # Power changes every 100 ms, the rest no faster; a read of the energy counter costs 5 ms of CPU.
            for key, wanted, period_s in (("gpu", ["power"], 0.02), ("state", state, 0.1), ("energy", ["energy"], 0)):
                if wanted and set(wanted) <= set(stems):
                    sources.append(
                        Source(
                            sensor=self.name,
                            key=f"{key}{index}",
                            period_s=period_s,
                            at_ends=key == "energy",
                            facts={"index": index, "stems": wanted, "now": now},
                            channels=tuple(_channel(stem, index, averaged=averaged) for stem in wanted),
                        )
                    )
        return sources

    def open(self, source: Source, target: Target) -> Read:
        nvml = _library()
        handle = nvml.nvmlDeviceGetHandleByIndex(source.facts["index"])
        found = _readers(nvml, handle, now=source.facts["now"])
        readers = [found[stem] for stem in source.facts["stems"]]

        def read() -> bytes:
            try:
                return b"\n".join([b"%d" % reader() for reader in readers])
            except nvml.NVMLError as error:
                raise OSError(f"NVML: {error}") from error

        return read


SENSOR = Nvml()
