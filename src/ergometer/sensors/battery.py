"""Power of a battery device: what the supply gives plus what the battery gives.

Drivers disagree on the unit (µA or mA) and the sign of the current, so both are calibrated from what the
battery itself says, and the calibration travels with the samples.
"""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, read_number, read_text

_FOLDER = "sys/class/power_supply"
_MAX_MILLIAMP = 20_000  # more than any phone draws in mA, less than any draws in µA under load
_STATUS = {"Charging": 1.0, "Discharging": -1.0}


def calibrate(current: float, status: str) -> dict[str, float | bool]:
    """Amperes per reported unit, and +1 if the driver reports discharge as negative (-1 if as positive).

    Sign and status agree on their meaning only while current flows in a known direction; otherwise the
    kernel's convention (negative: discharging) is assumed and said to be assumed.
    """
    ampere = 1e-3 if abs(current) < _MAX_MILLIAMP else 1e-6
    direction = _STATUS.get(status, 0.0)
    known = bool(direction) and current != 0
    sign = direction * (1 if current > 0 else -1) if known else 1.0
    return {"ampere": ampere, "sign": sign, "sign_known": known}


def volts(value: float) -> float:
    """Volts from µV, mV or V: no battery or USB supply is below 1 V or above 100 V."""
    return value * 1e-6 if value > 1e5 else value * 1e-3 if value > 100 else value


class Battery(Sensor):
    name = "battery"
    title = "battery and USB supply, added together (power_supply)"
    measures = "power"

    def _supplies(self, root: Path) -> tuple[list[Path], list[Path]]:
        """(batteries, supplies) whose current and voltage can be read."""
        batteries, supplies = [], []
        for folder in sorted((root / _FOLDER).glob("*")):
            readable = all(read_number(folder / name) is not None for name in ("current_now", "voltage_now"))
            kind = read_text(folder / "type") or ""
            if readable and kind == "Battery" and read_text(folder / "scope") != "Device":
                batteries.append(folder)
            elif readable and kind.startswith(("USB", "Mains", "Wireless")):
                supplies.append(folder)
        return batteries, supplies

    def probe(self, root: Path) -> Probe:
        batteries, supplies = self._supplies(root)
        if not batteries and not supplies:
            return Probe(False, "no battery or supply reports current and voltage", "devices with a battery only")
        found = ", ".join(folder.name for folder in batteries + supplies)
        return Probe(True, f"{found}; refreshed every 0.25 to 1 s by most fuel gauges")

    def sources(self, target: Target) -> list[Source]:
        batteries, supplies = self._supplies(target.root)
        if not batteries and not supplies:
            return []
        names, files, facts = [], [], {}
        for folder in batteries + supplies:
            status = read_text(folder / "status") or ""
            facts[folder.name] = {
                **calibrate(read_number(folder / "current_now") or 0.0, status),
                "battery": folder in batteries,
            }
            names.append(folder.name)
            files += [f"{_FOLDER}/{folder.name}/{name}" for name in ("current_now", "voltage_now")]
        # Without a battery reading, a charging or helping battery would go unnoticed: then it is a part.
        total = Channel(name="power.device", unit="W", scope="system" if batteries else "part")
        channels = (total, *(Channel(name=f"power.{name}", unit="W") for name in names))
        return [
            Source(sensor=self.name, key="supplies", channels=channels, files=tuple(files), period_s=0.05, facts=facts)
        ]

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        values = [float(line) for line in raw.strip().split(b"\n")]
        if len(values) != 2 * len(source.facts):
            raise ValueError(f"{len(values)} values for {len(source.facts)} supplies")
        powers = []
        for index, facts in enumerate(source.facts.values()):
            watts = values[2 * index] * facts["ampere"] * volts(values[2 * index + 1])
            # Out of a battery counts as positive; a supply only ever gives.
            powers.append(-watts * facts["sign"] if facts["battery"] else abs(watts))
        return [sum(powers), *powers]


SENSOR = Battery()
