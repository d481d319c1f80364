"""Load and frequency of an Adreno GPU, from kgsl."""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, read_number, read_text, why_unreadable

_FOLDER = "sys/class/kgsl/kgsl-3d0"


class Adreno(Sensor):
    name = "adreno"
    title = "GPU load and frequency of an Adreno (kgsl)"
    measures = "utilisation, frequency"

    def _load(self, root: Path) -> str | None:
        for name in ("gpu_busy_percentage", "gpubusy"):
            if read_text(root / _FOLDER / name):
                return name
        return None

    def probe(self, root: Path) -> Probe:
        if not (root / _FOLDER).is_dir():
            return Probe(False, "no kgsl device", "Qualcomm Adreno only")
        name = self._load(root)
        if name is None:
            why = why_unreadable(root / _FOLDER / "gpubusy") or "gpubusy is empty"
            return Probe(False, why, "a rooted shell can read it")
        return Probe(True, name)

    def sources(self, target: Target) -> list[Source]:
        name = self._load(target.root)
        if name is None:
            return []
        load = Channel(name="gpu_utilisation.0", unit="%")
        sources = [Source(sensor=self.name, key=name, channels=(load,), files=(f"{_FOLDER}/{name}",))]
        if read_number(target.root / _FOLDER / "gpuclk") is not None:
            clock = Channel(name="gpu_frequency.0", unit="Hz")
            files = (f"{_FOLDER}/gpuclk",)
            sources.append(Source(sensor=self.name, key="gpuclk", channels=(clock,), files=files, period_s=0.05))
        return sources

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        if source.key == "gpubusy":
            busy, total = (float(field) for field in raw.split())
            return [100.0 * busy / total if total else 0.0]  # "0 0": the GPU was off for the whole window
        return [float(raw.split(b"%")[0])]


SENSOR = Adreno()
