"""Power, load, clock and memory of AMD GPUs, as their driver (amdgpu) tells them in files."""

from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, first_readable, natural, read_number


class Amdgpu(Sensor):
    name = "amdgpu"
    title = "power, load, clock, memory of AMD GPUs (amdgpu)"
    measures = "power, utilisation, frequency, memory"

    def _cards(self, root: Path) -> list[Path]:
        cards = sorted((root / "sys/class/drm").glob("card*"), key=natural)
        return [card / "device" for card in cards if read_number(card / "device/gpu_busy_percent") is not None]

    def probe(self, root: Path) -> Probe:
        cards = self._cards(root)
        if not cards:
            return Probe(False, "no AMD GPU with its driver (amdgpu)", "AMD GPUs only")
        channels = {channel.name for number, card in enumerate(cards) for channel, _ in _channels(root, card, number)}
        return Probe(True, ", ".join(sorted(channels)))

    def sources(self, target: Target) -> list[Source]:
        # One source each: what a GPU stops telling takes nothing else with it.
        return [
            Source(sensor=self.name, key=channel.name, files=(path,), channels=(channel,))
            for number, card in enumerate(self._cards(target.root))
            for channel, path in _channels(target.root, card, number)
        ]


def _channels(root: Path, card: Path, number: int) -> list[tuple[Channel, str]]:
    """What this GPU tells, and in which files."""
    place, gpu = str(card.relative_to(root)), f"amd{number}"
    # What has no limit of its own to set is part of a processor, and its power includes the cores', as RAPL's does.
    scope = "component" if first_readable(root, [f"{place}/hwmon/hwmon*/power1_cap"]) else "part"
    now = first_readable(root, [f"{place}/hwmon/hwmon*/power1_input"])
    power = now or first_readable(root, [f"{place}/hwmon/hwmon*/power1_average"])
    found = [
        (Channel(name=f"power.{gpu}", unit="W", scale=1e-6, scope=scope, modelled=now is None), power),
        (Channel(name=f"gpu_utilisation.{gpu}", unit="%"), f"{place}/gpu_busy_percent"),
        (Channel(name=f"gpu_memory.{gpu}", unit="B"), first_readable(root, [f"{place}/mem_info_vram_used"])),
        (Channel(name=f"gpu_frequency.{gpu}", unit="Hz"), first_readable(root, [f"{place}/hwmon/hwmon*/freq1_input"])),
    ]
    return [(channel, path) for channel, path in found if path]


SENSOR = Amdgpu()
