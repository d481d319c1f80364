"""The threads and children of a process, found in /proc."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

_REFRESH_S = 0.25


def descendants(root: Path, pid: int) -> list[int]:
    """The process and all that it has started, as far as they still run."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(root / "proc"):  # noqa: PTH208 - a Path per process would triple the cost
        if name.isdigit():
            try:
                text = (root / "proc" / name / "stat").read_bytes()
            except OSError:
                continue  # ended while we looked
            parent = int(text[text.rindex(b")") + 2 :].split()[1])
            children.setdefault(parent, []).append(int(name))
    found, queue = [], [pid]
    while queue:
        current = queue.pop()
        found.append(current)
        queue += children.get(current, [])
    return found


def cpu_clock(pid: int) -> int:
    """The kernel's id of a process's CPU clock: the sum of what schedstat shows of every thread it ever had."""
    return (~pid << 3) | 2


class Processes:
    """A process and, for a tree, all that it has started; looked up again now and then."""

    def __init__(self, root: Path, pid: int, *, tree: bool, exclude: Sequence[int] = ()):
        self._root, self._pid, self._tree, self._exclude = root, pid, tree, exclude
        self._found = [pid]
        self._next = 0.0

    def now(self) -> list[int]:
        if self._tree and time.monotonic() >= self._next:
            self._found = [pid for pid in descendants(self._root, self._pid) if pid not in self._exclude]
            self._next = time.monotonic() + _REFRESH_S
        return self._found


class Kept:
    """The sum of counters of which some end: what an ended one said last still counts."""

    def __init__(self) -> None:
        self._last: dict[object, int] = {}
        self._ended = 0

    def total(self, current: dict[object, int]) -> int:
        self._ended += sum(value for key, value in self._last.items() if key not in current)
        self._last = current
        return self._ended + sum(current.values())


class CpuTime:
    """Reads the CPU time of a tree in ns; what ended processes used is kept."""

    def __init__(self, processes: Processes):
        self._processes, self._kept = processes, Kept()

    def read(self) -> bytes:
        current: dict[object, int] = {}
        for pid in self._processes.now():
            try:
                current[pid] = time.clock_gettime_ns(cpu_clock(pid))
            except OSError:
                continue  # it has ended
        return b"%d" % self._kept.total(current)


class ThreadWait:
    """Reads how long the threads of a target have waited for a core, in ns, from schedstat."""

    def __init__(self, root: Path, processes: Processes):
        self._root, self._processes, self._kept = root, processes, Kept()

    def read(self) -> bytes:
        current: dict[object, int] = {}
        for pid in self._processes.now():
            # One thread that ends while we look must not take the others with it: they would count twice.
            folder = f"{self._root}/proc/{pid}/task"  # a Path and a file object each would triple the cost
            try:
                threads = os.listdir(folder)  # noqa: PTH208 - likewise
            except OSError:
                continue
            for thread in threads:
                try:
                    current[pid, thread] = int(self._text(f"{folder}/{thread}/schedstat").split()[1])
                except (OSError, IndexError):
                    continue
        return b"%d" % self._kept.total(current)

    @staticmethod
    def _text(path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return os.read(descriptor, 128)
        finally:
            os.close(descriptor)


class Resident:
    """Reads the resident pages of a tree in the manner of statm, descriptors kept open."""

    def __init__(self, root: Path, processes: Processes):
        self._root, self._processes = root, processes
        self._files: dict[int, int] = {}

    def read(self) -> bytes:
        pages = 0
        alive = self._processes.now()
        for pid in alive:
            try:
                if pid not in self._files:
                    self._files[pid] = os.open(self._root / "proc" / str(pid) / "statm", os.O_RDONLY)
                pages += int(os.pread(self._files[pid], 64, 0).split()[1])
            except (OSError, IndexError):
                continue  # it has ended
        for pid in self._files.keys() - set(alive):
            os.close(self._files.pop(pid))
        return b"0 %d" % pages
