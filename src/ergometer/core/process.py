"""The threads and children of a process, found in /proc."""

import os
import time
from pathlib import Path


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


class ProcessFiles:
    """Reads one file of every thread (or process) of a target, descriptors kept open.

    Threads come and go, so the list is looked up again every refresh_s. With keep_last, what an ended
    one said last is still reported: its CPU time was spent all the same.
    """

    def __init__(self, root: Path, pid: int, name: str, *, tree: bool, per_thread: bool, keep_last: bool):
        self._root, self._pid, self._name = root, pid, name
        self._tree, self._per_thread, self._keep_last = tree, per_thread, keep_last
        self._refresh_s = 0.5 if tree else 0.1
        self._files: dict[Path, int] = {}
        self._descriptors: list[int] = []
        self._last: list[bytes] = []
        self._ended = b""
        self._next = 0.0
        self._refresh()
        if not self._files:
            raise OSError(f"process {pid} has no {name}")

    def _refresh(self) -> None:
        pids = descendants(self._root, self._pid) if self._tree else [self._pid]
        for pid in pids:
            folder = self._root / "proc" / str(pid)
            try:
                for item in (folder / "task").iterdir() if self._per_thread else [folder]:
                    path = item / self._name
                    if path not in self._files:
                        self._files[path] = os.open(path, os.O_RDONLY)
            except OSError:
                continue  # ended while we looked
        self._descriptors = list(self._files.values())
        self._next = time.monotonic() + self._refresh_s

    def read(self) -> bytes:
        if time.monotonic() >= self._next:
            self._refresh()
        try:
            lines = [os.pread(fd, 128, 0) for fd in self._descriptors]
        except ProcessLookupError:
            lines = [b""]
        if not all(lines):
            self._drop_ended()
            lines = [os.pread(fd, 128, 0) for fd in self._descriptors]
            if not lines and not self._tree:
                raise ProcessLookupError(f"process {self._pid} has ended")
        if self._keep_last:
            self._last = lines
        return b"".join(lines) + self._ended

    def _drop_ended(self) -> None:
        last = dict(zip(self._descriptors, self._last, strict=False))
        for path, fd in list(self._files.items()):
            try:
                alive = bool(os.pread(fd, 128, 0))
            except ProcessLookupError:
                alive = False
            if not alive:
                os.close(self._files.pop(path))
                self._ended += last.get(fd, b"")
        self._descriptors = list(self._files.values())
