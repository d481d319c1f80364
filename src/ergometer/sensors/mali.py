"""Load and frequency of a Mali GPU."""

from collections.abc import Sequence

from ergometer.core.gpu import GpuFiles
from ergometer.core.sensor import Source


class Mali(GpuFiles):
    name = "mali"
    title = "GPU load and frequency of a Mali"
    loads = ("sys/class/misc/mali0/device/utilization", "sys/class/misc/mali0/device/utilisation")
    clocks = ("sys/class/misc/mali0/device/devfreq/*/cur_freq", "sys/class/devfreq/*mali*/cur_freq")
    otherwise = ("no readable Mali utilisation file", "Arm Mali only; often denied to a plain shell")

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        return [float(raw.strip().rstrip(b"%"))]


SENSOR = Mali()
