"""Load and frequency of a Jetson's GPU, from sysfs (NVML does not answer there)."""

from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, first_readable

_LOADS = (
    "sys/devices/gpu.0/load",
    "sys/devices/platform/gpu.0/load",
    "sys/devices/platform/*.gpu/load",
    "sys/devices/platform/*/*.gpu/load",
    "sys/class/devfreq/*.gpu/device/load",
    "sys/class/devfreq/*.gv11b/device/load",
    "sys/class/devfreq/*.gp10b/device/load",
    "sys/class/devfreq/*.ga10b/device/load",
)
_FREQUENCIES = tuple(f"sys/class/devfreq/*.{name}/cur_freq" for name in ("gpu", "gp10b", "gv11b", "ga10b"))


class JetsonGpu(Sensor):
    name = "jetson_gpu"
    title = "GPU load and frequency of a Jetson (sysfs)"
    measures = "utilisation, frequency"

    def probe(self, root: Path) -> Probe:
        path = first_readable(root, _LOADS)
        if path is None:
            return Probe(False, "no Jetson GPU load file", "Jetson boards only")
        return Probe(True, f"{path}")

    def sources(self, target: Target) -> list[Source]:
        load = first_readable(target.root, _LOADS)
        if load is None:
            return []
        channel = Channel(name="gpu_utilisation.0", unit="%", scale=0.1)
        sources = [Source(sensor=self.name, key="load", channels=(channel,), files=(load,))]
        frequency = first_readable(target.root, _FREQUENCIES)
        if frequency is not None:
            clock = Channel(name="gpu_frequency.0", unit="Hz")
            sources.append(Source(sensor=self.name, key="clock", channels=(clock,), files=(frequency,), period_s=0.05))
        return sources


SENSOR = JetsonGpu()
