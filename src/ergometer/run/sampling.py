"""The parent's end of the sampler process."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ergometer.core.errors import ErgoError
from ergometer.core.sensor import sysroot

_START_S = 60.0
_STOP_S = 10.0


class Sampling:
    """Starts the sampler, hears what it says and stops it. The sampler outlives none of its readers."""

    def __init__(
        self,
        raw: Path,
        *,
        period_s: float,
        pid: int,
        tree: bool = False,
        sensors: Sequence[str] | None = None,
        limit_bytes: int | None = None,
        avoid_cores: Sequence[int] | None = None,
    ):
        free = sorted(os.sched_getaffinity(0) - set(avoid_cores or ()))
        config = {
            "raw": str(raw),
            "period_s": period_s,
            "pid": pid,
            "tree": tree,
            "root": str(sysroot()),
            "sensors": list(sensors) if sensors is not None else None,
            "limit_bytes": limit_bytes,
            "cores": free if avoid_cores and free else None,
        }
        self.live: dict[str, float] = {}
        self.lost: list[str] = []
        self.error = ""
        self.over_limit = False
        self.summary: dict[str, Any] | None = None
        self.cost: dict[str, Any] | None = None
        self.ended = False
        self._closed = False
        self._pending = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ergometer.sensors", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self.fd = self._process.stdout.fileno()
        os.set_blocking(self.fd, False)
        self.sources = 0
        self.compiled = False
        if not self._until("ready", _START_S):
            died = (
                "the sampler ended before it was ready"
                if self.ended
                else f"the sampler was not ready in {_START_S:.0f} s"
            )
            self.kill()
            raise ErgoError(self.error or f"{died}: see `ergo doctor`.")

    def _until(self, event: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.ended and (left := deadline - time.monotonic()) > 0:
            select.select([self.fd], [], [], left)
            if event in self.hear():
                return True
        return False

    def hear(self) -> list[str]:
        """Take in what the sampler has said; the names of the events."""
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            self.ended = True
            return []
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [self._take(json.loads(line)) for line in lines]

    def _take(self, message: dict[str, Any]) -> str:
        event = str(message["event"])
        if event == "live":
            self.live = message["values"]
        elif event == "lost":
            self.lost.append(f"sensor {message['source']} {message['reason']}")
        elif event == "ready":
            self.sources, self.compiled = message["sources"], message["compiled"]
        elif event == "over_limit":
            self.over_limit = True
        elif event == "error":
            self.error = message["reason"]
        elif event in ("flushed", "stopped"):
            self.cost = message
            self.summary = message if event == "stopped" else None
        return event

    def _command(self, word: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self.ended = True

    def flush(self) -> None:
        """Have everything sampled so far written to the raw file."""
        self._command(b"flush")
        self._until("flushed", _STOP_S)

    def stop(self) -> None:
        """End sampling and take in the sampler's account of itself. Calling it again does nothing."""
        if not self.ended and not self._closed:
            self._command(b"stop")
            self._until("stopped", _STOP_S)
        self.kill()

    def kill(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # what was left to say has no listener

    def warnings(self) -> list[str]:
        found = list(self.lost)
        if self.error:
            found.append(self.error)
        elif self.summary is None and self._closed:
            found.append("the sampler was killed: samples end where it was")
        return found
