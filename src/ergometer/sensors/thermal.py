"""Temperatures: the kernel's thermal zones, and the hwmon chips that are no zone."""

from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, natural, read_number, read_text


class Thermal(Sensor):
    name = "thermal"
    title = "temperatures (thermal zones and hwmon)"
    measures = "temperature"

    def _inputs(self, root: Path) -> dict[str, str]:
        """Channel name -> file, for every temperature that can be read now."""
        found: dict[str, str] = {}

        def add(name: str, path: Path) -> None:
            if read_number(path) is None:
                return  # a zone that is switched off answers with an error
            unique, number = name, 1
            while unique in found:
                number += 1
                unique = f"{name}_{number}"
            found[unique] = str(path.relative_to(root))

        zones = set()
        for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*"), key=natural):
            kind = read_text(zone / "type") or zone.name
            zones.add(kind)
            add(kind, zone / "temp")
        for chip in sorted((root / "sys/class/hwmon").glob("hwmon*"), key=natural):
            kind = read_text(chip / "name") or chip.name
            for path in sorted(chip.glob("temp*_input")):
                label = read_text(path.with_name(path.name.replace("_input", "_label")))
                if label is None and kind in zones:
                    continue  # the kernel repeats each thermal zone as a chip of the same name
                add(f"{kind}.{label or path.name.removesuffix('_input')}", path)
        return found

    def probe(self, root: Path) -> Probe:
        found = self._inputs(root)
        if not found:
            return Probe(
                False,
                "no thermal zone and no hwmon temperature",
                "a virtual machine has none; on a physical device load its thermal driver (x86: coretemp or k10temp)",
            )
        return Probe(True, f"{len(found)} temperatures: {', '.join(list(found)[:6])}")

    def sources(self, target: Target) -> list[Source]:
        # One source each: a zone that vanishes takes no other with it.
        return [
            Source(
                sensor=self.name,
                key=name,
                files=(path,),
                period_s=0.1,
                channels=(Channel(name=f"temperature.{name}", unit="°C", scale=1e-3),),
            )
            for name, path in self._inputs(target.root).items()
        ]


SENSOR = Thermal()
