"""CPU time of the measured process, and how long it waited for a core."""

from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.process import CpuTime, Processes, ThreadWait, cpu_clock
from ergometer.core.sensor import Channel, ClockRead, Read, Sensor, Source, Target, read_text


class Process(Sensor):
    name = "process"
    title = "CPU time and run-queue wait of the measured process (ns)"
    measures = "CPU time"

    def probe(self, root: Path) -> Probe:
        text = read_text(root / "proc/self/schedstat") or read_text(root / "proc/1/schedstat")
        if text is None:
            return Probe(False, "this kernel has no schedstat", "use a kernel with CONFIG_SCHED_INFO")
        return Probe(True, "CPU clock of the process, schedstat of its threads, in ns")

    def sources(self, target: Target) -> list[Source]:
        if target.pid is None or not self.probe(target.root).ok:
            return []
        used = Channel(name="process.cpu", unit="s", kind="counter", scale=1e-9)
        waited = Channel(name="process.wait", unit="s", kind="counter", scale=1e-9)
        return [
            # The CPU clock adds up what schedstat says of every thread, those included that have ended.
            Source(sensor=self.name, key="cpu", channels=(used,)),
            Source(sensor=self.name, key="wait", channels=(waited,), period_s=0.5),  # one file per thread
        ]

    def open(self, source: Source, target: Target) -> Read:
        assert target.pid is not None
        if source.key == "cpu" and not target.tree:
            return ClockRead(cpu_clock(target.pid))
        processes = Processes(target.root, target.pid, tree=target.tree, exclude=target.exclude)
        return CpuTime(processes).read if source.key == "cpu" else ThreadWait(target.root, processes).read


SENSOR = Process()
