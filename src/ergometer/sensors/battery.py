"""Power of a battery device: what the supply gives plus what the battery gives.

Drivers disagree on the unit (µA or mA) and the sign of the current, so both are calibrated from what the
battery itself says, and the calibration travels with the samples.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, read_number, read_text

_FOLDER = "sys/class/power_supply"
_MAX_MILLIAMP = 20_000  # more than any phone draws in mA, less than any draws in µA under load
_STATUS = {"Charging": 1.0, "Discharging": -1.0}


def calibrate(readings: Sequence[tuple[float, str]]) -> dict[str, float | bool]:
    """Amperes per reported unit and the driver's sign (+1: discharge is negative), from (current, status) pairs.

    The largest current tells the unit. The sign shows only while current flows in a known direction; otherwise the
    kernel's convention (negative: discharging) is assumed, and said to be assumed.
    """
    largest = max((abs(current) for current, _ in readings), default=0.0)
    votes = sum(
        _STATUS.get(status, 0.0) * (current > 0) - _STATUS.get(status, 0.0) * (current < 0)
        for current, status in readings
    )
    return {
        "ampere": 1e-3 if largest < _MAX_MILLIAMP else 1e-6,
        "sign": 1.0 if votes >= 0 else -1.0,
        "sign_known": votes != 0,
    }


def volts(value: float) -> float:
    """Volts from µV, mV or V: no battery or USB supply is below 1 V or above 100 V."""
    return value * 1e-6 if value > 1e5 else value * 1e-3 if value > 100 else value


def _current_file(folder: Path) -> str | None:
    """The file that tells the current now; some USB drivers name it by the direction."""
    return next((name for name in ("current_now", "input_current_now") if read_number(folder / name) is not None), None)


class Battery(Sensor):
    name = "battery"
    title = "battery and USB supply, added together (power_supply)"
    measures = "power"

    def _supplies(self, root: Path) -> tuple[list[Path], list[Path]]:
        """(batteries, supplies) whose current and voltage can be read."""
        batteries, supplies = [], []
        for folder in sorted((root / _FOLDER).glob("*")):
            readable = _current_file(folder) is not None and read_number(folder / "voltage_now") is not None
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

    def _covers_all(self, root: Path, batteries: list[Path]) -> bool:
        """Whether battery and readable supplies are all that feeds the device."""
        for folder in (root / _FOLDER).glob("*"):
            feeds = read_number(folder / "online") == 1 and read_text(folder / "type") != "Battery"
            if feeds and _current_file(folder) is None:
                return False
        return bool(batteries)

    def sources(self, target: Target) -> list[Source]:
        batteries, supplies = self._supplies(target.root)
        if not batteries and not supplies:
            return []
        names, files = [], []
        for folder in batteries + supplies:
            names.append(folder.name)
            status = "status" if (folder / "status").exists() else "type"
            files += [f"{_FOLDER}/{folder.name}/{name}" for name in (_current_file(folder), "voltage_now", status)]
        # On a supply that does not tell its current, the battery alone says nothing of what the device takes.
        scope = "system" if self._covers_all(target.root, batteries) else "part"
        channels = (
            Channel(name="power.device", unit="W", scope=scope),
            *(Channel(name=f"power.{name}", unit="W") for name in names),
        )
        source = Source(
            sensor=self.name,
            key="supplies",
            channels=channels,
            files=tuple(files),
            period_s=0.05,
            facts={"names": names, "batteries": [folder.name for folder in batteries]},
        )
        return [self.calibrate(source, [self.open(source, target)()])]

    def calibrate(self, source: Source, readings: Sequence[bytes]) -> Source:
        pairs: dict[str, list[tuple[float, str]]] = {name: [] for name in source.facts["names"]}
        for raw in readings:
            try:
                for name, current, _, status in _fields(source, raw):
                    pairs[name].append((current, status))
            except ValueError:
                continue  # counted as garbage when it is parsed
        found = {name: calibrate(seen) for name, seen in pairs.items()}
        assumed = any(not found[name]["sign_known"] for name in source.facts["batteries"])
        total = replace(source.channels[0], modelled=assumed)
        return replace(source, channels=(total, *source.channels[1:]), facts={**source.facts, "calibration": found})

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        powers = []
        for name, current, voltage, _ in _fields(source, raw):
            calibration = source.facts["calibration"][name]
            watts = current * calibration["ampere"] * volts(voltage)
            # Out of a battery counts as positive; a supply only ever gives.
            powers.append(-watts * calibration["sign"] if name in source.facts["batteries"] else abs(watts))
        return [sum(powers), *powers]


def _fields(source: Source, raw: bytes) -> list[tuple[str, float, float, str]]:
    """(name, current, voltage, status) of every battery and supply; ValueError if the bytes are something else."""
    lines = [line for line in raw.split(b"\n") if line]
    names = source.facts["names"]
    if len(lines) < 3 * len(names):
        raise ValueError(f"{len(lines)} lines for {len(names)} supplies")
    return [
        (name, float(lines[3 * at]), float(lines[3 * at + 1]), lines[3 * at + 2].decode(errors="replace"))
        for at, name in enumerate(names)
    ]


SENSOR = Battery()
