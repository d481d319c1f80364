"""Throttling: cooling devices that hold the processor back, and x86 throttle events."""

from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, natural, read_number, read_text

_SLOWS = ("cpufreq", "cpuidle", "processor", "devfreq", "gpu", "cpu", "powerclamp", "kgsl")


class Throttle(Sensor):
    name = "throttle"
    title = "throttling (cooling devices, x86 throttle counters)"
    measures = "throttling"

    def _inputs(self, root: Path) -> list[tuple[str, str, Channel]]:
        found = []
        for device in sorted((root / "sys/class/thermal").glob("cooling_device*"), key=natural):
            kind = read_text(device / "type") or ""
            path = device / "cur_state"
            if any(word in kind.lower() for word in _SLOWS) and read_number(path) is not None:
                name = f"{kind}.{natural(device)[1]}"
                found.append((name, str(path.relative_to(root)), Channel(name=f"throttle.{name}", unit="state")))
        for cpu in sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*"), key=natural):
            for what in ("core", "package"):
                path = cpu / f"thermal_throttle/{what}_throttle_count"
                if read_number(path) is not None:
                    name = f"{what}.{natural(cpu)[1]}"
                    channel = Channel(name=f"throttle.{name}", unit="events", kind="counter")
                    found.append((name, str(path.relative_to(root)), channel))
        return found

    def probe(self, root: Path) -> Probe:
        found = self._inputs(root)
        if not found:
            return Probe(
                False,
                "no cooling device of a processor and no thermal_throttle counter",
                "throttling is then seen only through frequency and temperature",
            )
        return Probe(True, f"{len(found)} indicators")

    def sources(self, target: Target) -> list[Source]:
        return [
            Source(sensor=self.name, key=name, files=(path,), channels=(channel,), period_s=0.1)
            for name, path, channel in self._inputs(target.root)
        ]


SENSOR = Throttle()
