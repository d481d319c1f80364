"""A Raspberry Pi's own view: throttling bits on every model, the PMIC's rails on a Pi 5."""

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Read, Sensor, Source, Target

_BITS = ("under_voltage", "frequency_capped", "throttled", "soft_temperature_limit")
# The rails leave out what bypasses the PMIC; fitted by others against a wall meter, error unknown.
_PMIC_SLOPE, _PMIC_OFFSET_W = 1.1451, 0.588


class RaspberryPi(Sensor):
    name = "raspberrypi"
    title = "throttling bits and PMIC rails of a Raspberry Pi (vcgencmd)"
    measures = "throttling, power"

    def _command(self, root: Path) -> Path | None:
        found = [root / folder / "vcgencmd" for folder in ("usr/bin", "opt/vc/bin", "bin")]
        return next((path for path in found if path.is_file()), None)

    def _ask(self, root: Path, question: str) -> bytes:
        command = self._command(root)
        if command is None:
            raise FileNotFoundError("vcgencmd has gone")
        try:
            done = subprocess.run([command, question], capture_output=True, timeout=2, check=True)
        except subprocess.SubprocessError as error:
            raise OSError(f"vcgencmd {question}: {error}") from error
        return done.stdout.strip()

    def probe(self, root: Path) -> Probe:
        if self._command(root) is None:
            return Probe(False, "no vcgencmd", "Raspberry Pi only; on one: apt install raspi-utils")
        try:
            self._ask(root, "get_throttled")
        except OSError as error:
            return Probe(False, str(error), "add the user to the group video")
        return Probe(True, "throttling bits" + (", PMIC rails" if self._has_pmic(root) else "; no power sensor"))

    def _has_pmic(self, root: Path) -> bool:
        try:
            return b"volt(" in self._ask(root, "pmic_read_adc")
        except OSError:
            return False

    def sources(self, target: Target) -> list[Source]:
        if not self.probe(target.root).ok:
            return []
        bits = tuple(Channel(name=f"throttle.{bit}", unit="state") for bit in _BITS)
        sources = [Source(sensor=self.name, key="get_throttled", channels=bits, period_s=1.0)]
        if self._has_pmic(target.root):
            power = (
                Channel(name="power.pmic", unit="W", scope="system", modelled=True),
                Channel(name="power.pmic_rails", unit="W"),
            )
            sources.append(Source(sensor=self.name, key="pmic_read_adc", channels=power, period_s=1.0))
        return sources

    def open(self, source: Source, target: Target) -> Read:
        return lambda: self._ask(target.root, source.key)

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        if source.key == "get_throttled":
            match = re.fullmatch(rb"throttled=(0x[0-9a-fA-F]+)", raw)
            if not match:
                raise ValueError("not the bits of get_throttled")
            value = int(match[1], 16)
            return [float(value >> bit & 1) for bit in range(4)]
        found: dict[bytes, dict[bytes, float]] = {b"volt": {}, b"current": {}}
        for name, kind, value_text in re.findall(rb"(\w+)_[AV] (volt|current)\(\d+\)=([\d.]+)", raw):
            found[kind][name] = float(value_text)
        rails = found[b"volt"].keys() & found[b"current"].keys()
        if not rails:
            raise ValueError("no rail in pmic_read_adc")
        watts = sum(found[b"volt"][rail] * found[b"current"][rail] for rail in rails)
        return [_PMIC_SLOPE * watts + _PMIC_OFFSET_W, watts]


SENSOR = RaspberryPi()
