"""Busy and idle time of every core, from /proc/stat."""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, read_text

_TICK_S = 0.01  # USER_HZ is 100 on every Linux ABI


class Cores(Sensor):
    name = "cores"
    title = "per-core busy and idle time (/proc/stat)"
    measures = "utilisation"

    def _cores(self, root: Path) -> list[int]:
        lines = (read_text(root / "proc/stat") or "").splitlines()
        return [int(line.split()[0][3:]) for line in lines if line[:3] == "cpu" and line[3:4].isdigit()]

    def probe(self, root: Path) -> Probe:
        cores = self._cores(root)
        if not cores:
            return Probe(False, f"{root / 'proc/stat'} is absent or lists no core", "mount procfs")
        return Probe(True, f"{len(cores)} cores, ticks of 10 ms")

    def sources(self, target: Target) -> list[Source]:
        cores = self._cores(target.root)
        channels = [
            Channel(name=f"cpu.{what}.{core}", unit="s", kind="counter") for core in cores for what in ("busy", "idle")
        ]
        if not cores:
            return []
        channels.append(Channel(name="cpu.steal", unit="s", kind="counter"))
        # Ticks of 10 ms say nothing over less than two of them.
        # The cpu lines come first; the rest of the file (interrupts) can be long and is left unread.
        size = 128 * (len(cores) + 1)
        return [
            Source(
                sensor=self.name,
                key="stat",
                channels=tuple(channels),
                files=("proc/stat",),
                period_s=0.05,
                facts={"cores": cores},
                buffer_bytes=size,
            )
        ]

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        seen: dict[int, tuple[float, float]] = {}
        steal = 0.0
        for line in raw.split(b"\n"):
            if not line.startswith(b"cpu"):
                break
            fields = line.split()
            if len(fields) < 9:
                continue
            if fields[0] == b"cpu":
                steal = int(fields[8]) * _TICK_S
                continue
            ticks = [int(field) for field in fields[1:9]]
            idle = ticks[3] + ticks[4]
            seen[int(fields[0][3:])] = ((sum(ticks) - idle) * _TICK_S, idle * _TICK_S)
        missing = float("nan"), float("nan")  # a core that is switched off has no line
        return [*(value for core in source.facts["cores"] for value in seen.get(core, missing)), steal]


SENSOR = Cores()
