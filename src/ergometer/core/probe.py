"""Whether a plug-in works here and, if not, why."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    ok: bool
    reason: str
    remedy: str = ""
