"""A hard memory limit for the worker: a cgroup of its own where one can be made."""

import os
from dataclasses import dataclass
from pathlib import Path

from ergometer.core.sensor import read_number, read_text


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup with a memory limit. version is 1 or 2."""

    path: Path
    version: int

    def kills(self) -> int:
        """How many processes the kernel has killed in it for memory."""
        text = read_text(self.path / ("memory.events" if self.version == 2 else "memory.oom_control")) or ""
        return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))

    def peak_bytes(self) -> int | None:
        """The most that was charged to it, where the kernel keeps that."""
        value = read_number(self.path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"))
        return int(value) if value else None

    def remove(self) -> None:
        try:
            self.path.rmdir()
        except OSError:
            pass  # a process that is just ending still holds it; it is empty and costs nothing


def make_group(name: str, limit_bytes: int) -> MemoryGroup | None:
    """A cgroup below our own with this limit, or None where the system does not let us make one."""
    for line in (read_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers == "memory":
            folder = Path("/sys/fs/cgroup/memory") / own.lstrip("/") / name
            settings = {"memory.limit_in_bytes": limit_bytes, "memory.memsw.limit_in_bytes": limit_bytes}
            required, version = "memory.limit_in_bytes", 1
        elif not controllers:
            folder = Path("/sys/fs/cgroup") / own.lstrip("/") / name
            settings = {"memory.max": limit_bytes, "memory.swap.max": 0}
            required, version = "memory.max", 2
        else:
            continue
        group = MemoryGroup(folder, version)
        try:
            folder.mkdir()
            for file, value in settings.items():
                if file == required or (folder / file).exists():
                    with open(folder / file, "w") as handle:
                        handle.write(str(value))
            if os.access(folder / "cgroup.procs", os.W_OK):
                return group
        except OSError:
            pass  # not ours to make; the next hierarchy, or watching, is tried
        group.remove()
    return None


def available_bytes() -> float:
    """What processes of ours can still take, by the whole system and by the groups that we are in."""
    found = field_of("/proc/meminfo", "MemAvailable:") * 1024.0
    for line in (read_text(Path("/proc/self/cgroup")) or "").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers in ("", "memory"):
            top = Path("/sys/fs/cgroup") / controllers
            most, now = (
                ("memory.limit_in_bytes", "memory.usage_in_bytes") if controllers else ("memory.max", "memory.current")
            )
            for folder in [top / own.lstrip("/"), *(top / own.lstrip("/")).parents]:
                limit, used = read_number(folder / most), read_number(folder / now)
                if limit is not None and used is not None:
                    # Pages of files are given up when memory is wanted.
                    found = min(found, limit - used + field_of(folder / "memory.stat", "inactive_file "))
    return found


def field_of(path: Path | str, name: str) -> int:
    """The number behind this name in a file of lines; 0 if there is none."""
    lines = (read_text(Path(path)) or "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def how_limited() -> str:
    """In words, how a memory limit would be kept on this system."""
    group = make_group(f"ergo-probe-{os.getpid()}", 1 << 30)
    if group is None:
        return "watched at every sample and killed when over (no cgroup can be made here)"
    group.remove()
    return f"cgroup v{group.version}"
