"""CPU pressure: how long some task waited for a core, whoever it belonged to."""

import re
from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, why_unreadable

_FILE = "proc/pressure/cpu"


class Pressure(Sensor):
    name = "pressure"
    title = "CPU pressure of the whole device (PSI)"
    measures = "contamination"

    def probe(self, root: Path) -> Probe:
        why = why_unreadable(root / _FILE)
        if why:
            return Probe(False, why, "boot with psi=1 (kernel 4.20 or later)")
        return Probe(True, "stall time in µs")

    def sources(self, target: Target) -> list[Source]:
        if not self.probe(target.root).ok:
            return []
        channel = Channel(name="pressure.cpu", unit="s", kind="counter", scale=1e-6)
        return [
            Source(sensor=self.name, key="cpu", channels=(channel,), files=(_FILE,), period_s=0.1, buffer_bytes=256)
        ]

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        match = re.match(rb"some .*total=(\d+)", raw)
        if not match:
            raise ValueError("not a pressure file")
        return [int(match[1]) * source.channels[0].scale]


SENSOR = Pressure()
