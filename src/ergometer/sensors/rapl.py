"""Energy of x86 packages, cores and memory, from RAPL's counters (which wrap around)."""

from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, natural, read_number, read_text, why_unreadable

_FOLDER = "sys/class/powercap"


class Rapl(Sensor):
    name = "rapl"
    title = "energy of x86 packages, cores and memory (RAPL)"
    measures = "energy"

    def _zones(self, root: Path) -> list[Path]:
        # intel-rapl-mmio repeats the package of intel-rapl and would count it twice.
        return sorted((root / _FOLDER).glob("intel-rapl:*"), key=natural)

    def probe(self, root: Path) -> Probe:
        zones = self._zones(root)
        if not zones:
            return Probe(
                False,
                f"no {root / _FOLDER}/intel-rapl:*",
                "x86 only: load intel_rapl_msr (a virtual machine has no RAPL)",
            )
        why = why_unreadable(zones[0] / "energy_uj")
        if why:
            return Probe(False, why, f"run as root, or: sudo chmod a+r {root / _FOLDER}/intel-rapl:*/energy_uj")
        return Probe(True, f"{len(zones)} zones")

    def sources(self, target: Target) -> list[Source]:
        if not self.probe(target.root).ok:
            return []
        sources = []
        for zone in self._zones(target.root):
            name = read_text(zone / "name") or zone.name
            if zone.name.count(":") > 1:
                parent = zone.parent / zone.name.rsplit(":", 1)[0]
                name = f"{read_text(parent / 'name') or parent.name}.{name}"
            limit = read_number(zone / "max_energy_range_uj")
            leaf = name.rsplit(".", 1)[-1]
            scope = "system" if leaf == "psys" else "component" if leaf.startswith(("package", "dram")) else "part"
            channel = Channel(
                name=f"energy.{name}",
                unit="J",
                kind="counter",
                scale=1e-6,
                wrap=limit * 1e-6 if limit else None,
                scope=scope,
            )
            path = f"{_FOLDER}/{zone.name}/energy_uj"
            if not why_unreadable(target.root / path):
                sources.append(Source(sensor=self.name, key=name, files=(path,), channels=(channel,)))
        return sources


SENSOR = Rapl()
