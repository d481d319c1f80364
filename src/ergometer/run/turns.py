"""A worker that has loaded a network and steps when it is its turn; in between it is stopped, threads and all."""

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ergometer.core.sensor import read_text
from ergometer.core.spec import Spec
from ergometer.run.interrupt import Interrupt
from ergometer.run.limit import field_of
from ergometer.run.lowering import StoppedError
from ergometer.run.neighbours import Neighbours
from ergometer.run.parent import death_of, hold_worker, kernel_kills, killed_for
from ergometer.run.worker import SHORT, THOROUGH
from ergometer.store.home import write_json


class FailedError(Exception):
    """The worker could not take its turn."""


class Contestant:
    """disturbed: whether something else used the cores in its last turn."""

    def __init__(self, spec: Spec, folder: Path, flags: Sequence[str], interrupt: Interrupt):
        self.folder, self.interrupt = folder, interrupt
        self.stage, self._pending, self._kills_before = "start", b"", kernel_kills()
        self.disturbed = False
        folder.mkdir()
        write_json(folder / "spec.json", spec.to_json())
        self.worker, self._messages, self._release = hold_worker(spec, folder, ["--turns", *flags])
        self.worker.go()

    def wait_until_loaded(self, hang_s: float, end_by: float) -> None:
        """It loads since it was made, and is stopped from then until its first turn. FailedError says why not."""
        self._wait_for("loaded", hang_s, end_by)

    def turn(self, hang_s: float, end_by: float, *, thorough: bool = False) -> float:
        """The median of the seconds of a step; the first turn comes after loading. A thorough one has more of them, and
        the network is loaded anew for it if that is quick. FailedError says why not."""
        neighbours = Neighbours(self.worker.pid)
        self.worker.signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # it died since its last turn, and what is read says so
            os.write(self._release, THOROUGH if thorough else SHORT)
        step_s = float(self._wait_for("turn", hang_s, end_by)["step_s"])
        self.disturbed = neighbours.disturbed()
        return step_s

    def _wait_for(self, event: str, hang_s: float, end_by: float) -> dict[str, Any]:
        """The message of this event, after which the worker is stopped."""
        heard_at = time.monotonic()
        while True:
            wait_s = min(heard_at + hang_s, end_by) - time.monotonic()
            readable, _, _ = select.select([self._messages, self.interrupt.fileno()], [], [], max(0.0, wait_s))
            if self.interrupt.count:
                raise StoppedError("stopped by the user; nothing is remembered")
            if not readable:
                silent_s = None if time.monotonic() >= end_by else hang_s
                raise FailedError(killed_for(self.stage, silent_s, "--time of ergo tune"))
            data = os.read(self._messages, 1 << 16)
            if not data:
                raise FailedError(": ".join(death_of(self.worker.wait(), self.stage, self.folder, self._kills_before)))
            heard_at = time.monotonic()
            *lines, self._pending = (self._pending + data).split(b"\n")
            for line in lines:
                message: dict[str, Any] = json.loads(line)
                if message["event"] == event:
                    self.worker.signal(signal.SIGSTOP)
                    return message
                if message["event"] == "stage":
                    self.stage = message["name"]
                elif message["event"] in ("done", "error"):
                    raise FailedError(self._reason(message))

    def _reason(self, message: dict[str, str]) -> str:
        facts = json.loads(read_text(self.folder / "worker.json") or "{}")
        return f"{facts['status']}: {facts['reason']}" if facts else message["reason"]

    def resident_bytes(self) -> int:
        """The most that it has had in memory."""
        return field_of(f"/proc/{self.worker.pid}/status", "VmHWM:") * 1024

    def close(self) -> None:
        self.worker.kill()
        self.worker.wait()
        os.close(self._release)
        os.close(self._messages)
