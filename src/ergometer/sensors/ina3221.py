"""Power rails of a Jetson, from the INA3221 monitors: hwmon (JetPack 5 and later) or iio (JetPack 4)."""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, read_number, read_text

_TOTALS = ("VDD_IN", "POM_5V_IN", "VIN")
_CHIPS = ("sys/class/hwmon/hwmon*", "sys/bus/i2c/devices/*/hwmon/hwmon*")  # the same chip by two names


class Ina3221(Sensor):
    name = "ina3221"
    title = "power rails of a Jetson (INA3221, hwmon and iio layouts)"
    measures = "power"

    def _rails(self, root: Path) -> dict[str, tuple[str, ...]]:
        """Rail name -> its files: (mV, mA) in the hwmon layout, (mW,) in the iio layout."""
        rails: dict[str, tuple[str, ...]] = {}
        chips = [path for pattern in _CHIPS for path in sorted(root.glob(pattern))]
        for chip in chips:
            if read_text(chip / "name") != "ina3221":
                continue
            for label_file in sorted(chip.glob("in*_label")):
                number = label_file.name[2:].removesuffix("_label")
                label = read_text(label_file) or ""
                files = (chip / f"in{number}_input", chip / f"curr{number}_input")
                # in7 is the sum of the shunt voltages: it has no current of its own.
                if label and label != "NC" and all(read_number(path) is not None for path in files):
                    rails[label] = tuple(str(path.relative_to(root)) for path in files)
        for name_file in sorted((root / "sys/bus/i2c/drivers/ina3221x").glob("*/iio:device*/rail_name_*")):
            number = name_file.name.rsplit("_", 1)[1]
            power = name_file.parent / f"in_power{number}_input"
            label = read_text(name_file) or ""
            if label and label != "NC" and read_number(power) is not None:
                rails[label] = (str(power.relative_to(root)),)
        return rails

    def probe(self, root: Path) -> Probe:
        rails = self._rails(root)
        if not rails:
            return Probe(False, "no INA3221 power monitor", "Jetson boards only")
        return Probe(True, f"{len(rails)} rails: {', '.join(rails)}")

    def sources(self, target: Target) -> list[Source]:
        rails = self._rails(target.root)
        whole = any(name in _TOTALS for name in rails)
        sources = []
        for name, files in rails.items():
            scope = "system" if name in _TOTALS else "part" if whole else "component"
            channel = Channel(name=f"power.{name}", unit="W", scope=scope)
            sources.append(Source(sensor=self.name, key=name, files=files, channels=(channel,)))
        return sources

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        values = [float(word) for word in raw.split()]
        if len(values) != len(source.files):
            raise ValueError(f"{len(values)} values from {len(source.files)} files")
        return [values[0] * values[1] * 1e-6 if len(values) == 2 else values[0] * 1e-3]


SENSOR = Ina3221()
