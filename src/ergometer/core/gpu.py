"""GPUs that tell their load and clock in files, and what brings the driver of others."""

from pathlib import Path
from typing import ClassVar

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, first_readable

NVIDIA_DRIVER = "install the NVIDIA driver (apt install nvidia-driver; a Jetson has it from JetPack)"


class GpuFiles(Sensor):
    """Reads the first load file and the first clock file (Hz) that exist; patterns in order of preference."""

    loads: ClassVar[tuple[str, ...]]
    clocks: ClassVar[tuple[str, ...]]
    scale: ClassVar[float] = 1.0
    otherwise: ClassVar[tuple[str, str]]  # reason and remedy where there is no load file
    measures = "utilisation, frequency"

    def probe(self, root: Path) -> Probe:
        load = first_readable(root, self.loads)
        return Probe(True, load) if load else Probe(False, *self.otherwise)

    def sources(self, target: Target) -> list[Source]:
        load, clock = first_readable(target.root, self.loads), first_readable(target.root, self.clocks)
        if load is None:
            return []
        channel = Channel(name="gpu_utilisation.0", unit="%", scale=self.scale)
        sources = [Source(sensor=self.name, key=Path(load).name, channels=(channel,), files=(load,))]
        if clock is not None:
            channel = Channel(name="gpu_frequency.0", unit="Hz")
            sources.append(Source(sensor=self.name, key="clock", channels=(channel,), files=(clock,), period_s=0.05))
        return sources
