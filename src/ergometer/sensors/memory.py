"""Resident memory of the measured process: now, its high-water mark, and its fair share (PSS)."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.process import Processes, Resident
from ergometer.core.sensor import Channel, Read, Sensor, Source, Target, read_text

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory(Sensor):
    name = "memory"
    title = "resident memory of the measured process (statm, VmHWM; PSS at the ends)"
    measures = "memory"

    def probe(self, root: Path) -> Probe:
        if read_text(root / "proc/self/statm") is None and read_text(root / "proc/1/statm") is None:
            return Probe(False, "no /proc/PID/statm", "mount procfs")
        return Probe(True, f"pages of {_PAGE} bytes")

    def sources(self, target: Target) -> list[Source]:
        if target.pid is None:
            return []
        resident = Channel(name="process.rss", unit="B")
        statm = f"proc/{target.pid}/statm"
        sources = [Source(sensor=self.name, key="statm", channels=(resident,), files=(statm,), period_s=0.05)]
        if not target.tree:
            status = f"proc/{target.pid}/status"
            peak = Channel(name="process.peak", unit="B")
            sources.append(
                Source(
                    sensor=self.name, key="VmHWM", channels=(peak,), files=(status,), period_s=0.5, buffer_bytes=2048
                )
            )
            # smaps_rollup costs milliseconds (it walks every mapping), so it is read at the ends alone.
            pss = Channel(name="process.pss", unit="B")
            rollup = f"proc/{target.pid}/smaps_rollup"
            if os.access(target.root / rollup, os.R_OK):
                sources.append(
                    Source(
                        sensor=self.name, key="Pss", channels=(pss,), files=(rollup,), at_ends=True, buffer_bytes=4096
                    )
                )
        return sources

    def open(self, source: Source, target: Target) -> Read:
        if source.key == "Pss":
            # Opened anew each time: a kept descriptor belongs to the program that ran before exec.
            return (target.root / source.files[0]).read_bytes
        if source.key == "statm" and target.tree:
            assert target.pid is not None
            return Resident(target.root, Processes(target.root, target.pid, tree=True, exclude=target.exclude)).read
        return super().open(source, target)

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        if source.key == "statm":
            return [int(raw.split()[1]) * _PAGE]
        match = re.search(rb"^" + source.key.encode() + rb":\s+(\d+) kB", raw, re.MULTILINE)
        if not match and b"State:" in raw:
            return [float("nan")]  # the process has ended and waits for its parent
        if not match:
            raise ValueError(f"no {source.key}")
        return [int(match[1]) * 1024.0]


SENSOR = Memory()
