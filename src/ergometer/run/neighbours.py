"""Whether something else used the cores while a process worked: other processes, or the host of a virtual machine."""

import os
import time

from ergometer.core.process import cpu_clock
from ergometer.core.sensor import read_text, sysroot

_TICK_S = 0.01  # USER_HZ is 100 on every Linux ABI
_MUCH = 0.05  # of what the cores have; threads that wait for each other lose more
_LEAST_S = 0.04  # what ticks that are rounded may add up to


class Neighbours:
    """From now on. They are never seen where the system does not show what its cores do."""

    def __init__(self, pid: int):
        self.pid = pid
        self.before = self._now()

    def disturbed(self) -> bool:
        """Whether so far others have used the cores that this process may use."""
        if self.before is None or (now := self._now()) is None:
            return False
        elapsed_s, busy_s, own_s = (new - old for new, old in zip(now, self.before, strict=True))
        cores = len(os.sched_getaffinity(0))
        return busy_s - own_s > max(_LEAST_S, _MUCH * cores * elapsed_s)

    def _now(self) -> tuple[float, float, float] | None:
        """Seconds: of the clock, of all the cores' work, and of this process's."""
        busy = _busy_s()
        try:
            return None if busy is None else (time.monotonic(), busy, time.clock_gettime(cpu_clock(self.pid)))
        except OSError:  # it has ended
            return None


def _busy_s() -> float | None:
    """Seconds that the cores were not idle since the system began; what the host took counts."""
    found = None
    here = os.sched_getaffinity(0)
    for line in (read_text(sysroot() / "proc/stat") or "").splitlines():
        name, *fields = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in here:
            user, nice, system, _, _, *others = map(int, fields[:8])
            found = (found or 0.0) + (user + nice + system + sum(others)) * _TICK_S
    return found
