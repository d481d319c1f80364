"""Load and frequency of a Mali GPU."""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, first_readable

_LOADS = ("sys/class/misc/mali0/device/utilization", "sys/class/misc/mali0/device/utilisation")
_FREQUENCIES = ("sys/class/misc/mali0/device/devfreq/*/cur_freq", "sys/class/devfreq/*mali*/cur_freq")


class Mali(Sensor):
    name = "mali"
    title = "GPU load and frequency of a Mali"
    measures = "utilisation, frequency"

    def probe(self, root: Path) -> Probe:
        load = first_readable(root, _LOADS)
        if load is None:
            return Probe(False, "no readable Mali utilisation file", "Arm Mali only; often denied to a plain shell")
        return Probe(True, load)

    def sources(self, target: Target) -> list[Source]:
        load = first_readable(target.root, _LOADS)
        if load is None:
            return []
        channel = Channel(name="gpu_utilisation.0", unit="%")
        sources = [Source(sensor=self.name, key="load", channels=(channel,), files=(load,))]
        frequency = first_readable(target.root, _FREQUENCIES)
        if frequency is not None:
            clock = Channel(name="gpu_frequency.0", unit="Hz")
            sources.append(Source(sensor=self.name, key="clock", channels=(clock,), files=(frequency,), period_s=0.05))
        return sources

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        return [float(raw.strip().rstrip(b"%"))]


SENSOR = Mali()
