"""Load and frequency of an Adreno GPU, from kgsl."""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.gpu import GpuFiles
from ergometer.core.probe import Probe
from ergometer.core.sensor import Source, why_unreadable

_FOLDER = "sys/class/kgsl/kgsl-3d0"


class Adreno(GpuFiles):
    name = "adreno"
    title = "GPU load and frequency of an Adreno (kgsl)"
    loads = (f"{_FOLDER}/gpu_busy_percentage", f"{_FOLDER}/gpubusy")
    clocks = (f"{_FOLDER}/gpuclk",)
    otherwise = ("no kgsl device", "Qualcomm Adreno only")

    def probe(self, root: Path) -> Probe:
        found = super().probe(root)
        if not found.ok and (root / _FOLDER).is_dir():
            why = why_unreadable(root / _FOLDER / "gpubusy") or "gpubusy is empty"
            return Probe(False, why, "a rooted shell can read it")
        return found

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        if source.key == "gpubusy":
            busy, total = (float(field) for field in raw.split())
            return [100.0 * busy / total if total else 0.0]  # "0 0": the GPU was off for the whole window
        return [float(raw.split(b"%")[0])]


SENSOR = Adreno()
