"""Starts a process that waits for a word before it does anything."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from ergometer.core.process import cpu_clock

_TRAMPOLINE = Path(__file__).with_name("trampoline.py")


class Held:
    """A process that stands ready; go() lets it become its command."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cores: Sequence[int] | None = None,
        cgroup: Path | None = None,
        die_with_parent: bool = False,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | None = None,
        own_session: bool = True,
    ):
        read_end, self._go = os.pipe()
        settings = {
            "cores": list(cores or ()),
            "cgroup": str(cgroup) if cgroup else None,
            "go": read_end,
            "die_with_parent": die_with_parent,
            "first_to_kill": die_with_parent,
            "parent": os.getpid(),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_TRAMPOLINE), json.dumps(settings), *command],
            pass_fds=[read_end, *pass_fds],
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL if stderr else None,
            stdout=stdout,
            stderr=stderr,
            start_new_session=own_session,
        )
        os.close(read_end)
        self.pid = self.process.pid
        self.peak_bytes: int | None = None
        self.cpu_s = self._waiting_s = 0.0

    def go(self) -> None:
        try:
            # What standing ready has cost is not the command's.
            self._waiting_s = time.clock_gettime_ns(cpu_clock(self.pid)) * 1e-9
            os.write(self._go, b"g")
        except OSError:
            pass  # it died while it waited; wait() tells how
        os.close(self._go)
        self._go = -1

    def signal(self, number: int) -> None:
        if self.process.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass  # it ended by itself

    def kill(self) -> None:
        if self._go >= 0:
            os.close(self._go)
            self._go = -1
        self.signal(signal.SIGKILL)

    def wait(self) -> int:
        """The exit status (negative: the signal); also sets peak_bytes if the kernel knows it for certain."""
        if self.process.returncode is None:
            own_kib = resident_peak_kib()
            _, status, usage = os.wait4(self.pid, 0)
            self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_s = max(0.0, usage.ru_utime + usage.ru_stime - self._waiting_s)
            # The kernel counts the moment before exec, when the child still shared our memory. Only a
            # figure above our own peak is certainly the child's.
            if usage.ru_maxrss > own_kib:
                self.peak_bytes = usage.ru_maxrss * 1024
        assert self.process.returncode is not None
        return self.process.returncode


def resident_peak_kib() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
