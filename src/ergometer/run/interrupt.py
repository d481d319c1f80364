"""Ctrl-C as an event that a waiting loop can see, so that nothing is torn down halfway."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupt:
    """While entered, SIGINT, SIGTERM and SIGHUP are counted instead of ending the program."""

    def __init__(self) -> None:
        self.count = 0
        self.last = 0
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        self._previous: dict[int, Any] = {}

    def fileno(self) -> int:
        return self._read

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self.last = number
        os.write(self._write, b"!")

    def clear(self) -> None:
        """Forget that the descriptor is readable; the count stays."""
        try:
            os.read(self._read, 64)
        except BlockingIOError:
            pass

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)
