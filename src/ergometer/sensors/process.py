"""CPU time of the measured process, and how long it waited for a core, from schedstat."""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.process import ProcessFiles
from ergometer.core.sensor import Channel, Read, Sensor, Source, Target, read_text


class Process(Sensor):
    name = "process"
    title = "CPU time and run-queue wait of the measured process (schedstat, ns)"
    measures = "CPU time"

    def probe(self, root: Path) -> Probe:
        text = read_text(root / "proc/self/schedstat") or read_text(root / "proc/1/schedstat")
        if text is None:
            return Probe(False, "this kernel has no schedstat", "use a kernel with CONFIG_SCHED_INFO")
        return Probe(True, "schedstat of every thread, in ns")

    def sources(self, target: Target) -> list[Source]:
        if target.pid is None or not self.probe(target.root).ok:
            return []
        channels = tuple(Channel(name=f"process.{what}", unit="s", kind="counter") for what in ("cpu", "wait"))
        return [Source(sensor=self.name, key="schedstat", channels=channels)]

    def open(self, source: Source, target: Target) -> Read:
        assert target.pid is not None
        return ProcessFiles(
            target.root, target.pid, "schedstat", tree=target.tree, per_thread=True, keep_last=True
        ).read

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        fields = raw.split()
        return [sum(map(int, fields[0::3])) * 1e-9, sum(map(int, fields[1::3])) * 1e-9]


SENSOR = Process()
