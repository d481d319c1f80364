"""Clock frequency of every core, from cpufreq."""

from collections.abc import Sequence
from pathlib import Path

from ergometer.core.probe import Probe
from ergometer.core.sensor import Channel, Sensor, Source, Target, natural, read_number, read_text

_FOLDER = "sys/devices/system/cpu/cpufreq"


class Frequency(Sensor):
    name = "frequency"
    title = "frequency and governor of every core (cpufreq)"
    measures = "frequency"

    def _policies(self, root: Path) -> list[Path]:
        found = sorted((root / _FOLDER).glob("policy*"), key=natural)
        return [policy for policy in found if read_number(policy / "scaling_cur_freq") is not None]

    def probe(self, root: Path) -> Probe:
        policies = self._policies(root)
        if not policies:
            return Probe(
                False,
                "no cpufreq policy: the kernel does not control the frequency (virtual machine, or driver missing)",
                "on a physical device, load its cpufreq driver",
            )
        governors = sorted({read_text(policy / "scaling_governor") or "unknown" for policy in policies})
        return Probe(True, f"{len(policies)} policies, governor {', '.join(governors)}")

    def sources(self, target: Target) -> list[Source]:
        policies = self._policies(target.root)
        if not policies:
            return []
        cpus = []
        for policy in policies:
            text = read_text(policy / "related_cpus") or read_text(policy / "affected_cpus")
            cpus.append([int(cpu) for cpu in text.split()] if text else [natural(policy)[1]])
        channels = [Channel(name=f"frequency.{cpu}", unit="Hz", scale=1e3) for group in cpus for cpu in group]
        return [
            Source(
                sensor=self.name,
                key="policies",
                channels=tuple(channels),
                period_s=0.05,
                files=tuple(f"{_FOLDER}/{policy.name}/scaling_cur_freq" for policy in policies),
                facts={
                    "cpus": cpus,
                    "governors": {policy.name: read_text(policy / "scaling_governor") or "" for policy in policies},
                },
            )
        ]

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        values = [float(word) * 1e3 for word in raw.split()]
        return [value for value, cpus in zip(values, source.facts["cpus"], strict=True) for _ in cpus]


SENSOR = Frequency()
