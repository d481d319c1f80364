"""The contract of a sensor, and the base of the many that read small files."""

import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ergometer.core.errors import UsageError
from ergometer.core.probe import Probe


def sysroot() -> Path:
    """Where /proc and /sys are looked for: ERGO_SYSROOT, or the real ones."""
    root = Path(os.environ.get("ERGO_SYSROOT") or "/")
    if not root.is_dir():
        raise UsageError(f"ERGO_SYSROOT={root} is not a directory: name the root of a device's tree, or unset it.")
    return root


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """One series of numbers.

    kind: gauge (a level) or counter (only ever grows). wrap: where a counter starts again at 0.
    scale turns the file's number into the unit. scope says what a power or energy channel covers, so
    that nothing is added twice: system (the whole device), component (disjoint parts) or part.
    modelled: a correction of unknown error was applied, so all that follows from it is estimated.
    """

    name: str
    unit: str
    kind: str = "gauge"
    scale: float = 1.0
    wrap: float | None = None
    scope: str = "part"
    modelled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What is read at one instant: raw bytes that become one value per channel.

    period_s: no more often than this (0: every tick). at_ends: only when sampling starts and stops.
    facts: what was found at probing that parse() needs later, such as a calibration.
    """

    sensor: str
    key: str
    channels: tuple[Channel, ...]
    files: tuple[str, ...] = ()
    period_s: float = 0.0
    at_ends: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    buffer_bytes: int = 64

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Source":
        channels = tuple(Channel(**channel) for channel in data["channels"])
        return cls(**{**data, "channels": channels, "files": tuple(data["files"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which device (its root directory) and which process (with its children if tree, but some) to observe."""

    root: Path
    pid: int | None = None
    tree: bool = False
    exclude: tuple[int, ...] = ()


Read = Callable[[], bytes]


@dataclass(frozen=True, slots=True)
class FileRead:
    """Reads small files, descriptors kept open. Known by its type, so that the sampler's compiled loop can do it."""

    descriptors: tuple[int, ...]
    size: int

    def __call__(self) -> bytes:
        if len(self.descriptors) == 1:
            return os.pread(self.descriptors[0], self.size, 0)
        return b"\n".join([os.pread(descriptor, self.size, 0) for descriptor in self.descriptors])


@dataclass(slots=True)
class ClockRead:
    """Reads one of the kernel's clocks, in ns; one that has ended stands still. Known by its type, likewise."""

    clock: int
    last: bytes = b""

    def __call__(self) -> bytes:
        try:
            self.last = b"%d" % time.clock_gettime_ns(self.clock)
        except OSError:
            pass
        return self.last


class Sensor(ABC):
    """Reads each source's files with descriptors kept open; one number per file.

    A sensor overrides sources() and probe(), and open() or parse() where its files are not plain numbers.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    measures: ClassVar[str]

    @abstractmethod
    def probe(self, root: Path) -> Probe:
        """Whether the sensor works on the device with this root directory."""

    @abstractmethod
    def sources(self, target: Target) -> list[Source]:
        """What to read for this target; empty where probe() is not ok."""

    def open(self, source: Source, target: Target) -> Read:
        """A function that reads the source now; OSError when the source has gone."""
        descriptors = (os.open(target.root / name.lstrip("/"), os.O_RDONLY) for name in source.files)
        return FileRead(tuple(descriptors), source.buffer_bytes)

    def calibrate(self, source: Source, readings: Sequence[bytes]) -> Source:
        """The source with what all its readings together tell of how to parse them; nothing for most sensors."""
        return source

    def parse(self, source: Source, raw: bytes) -> Sequence[float]:
        """One value per channel; ValueError when the bytes are not what the sensor should say."""
        words = raw.split()
        if len(words) != len(source.channels):
            raise ValueError(f"{len(words)} values for {len(source.channels)} channels")
        return [float(word) * channel.scale for word, channel in zip(words, source.channels, strict=True)]


def read_text(path: Path) -> str | None:
    """The file's text without trailing blanks, or None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> float | None:
    text = read_text(path)
    try:
        return float(text) if text else None
    except ValueError:
        return None


def why_unreadable(path: Path) -> str:
    """'' if the file can be read, otherwise the reason in words."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            return f"{path} is readable by root only"
        return f"{path}: {os.strerror(error.errno or 0).lower()}"
    return ""


def natural(path: Path) -> tuple[str, int]:
    """Sort key that puts cpu10 after cpu9."""
    stem = path.name.rstrip("0123456789")
    digits = path.name[len(stem) :]
    return stem, int(digits) if digits else -1


def first_readable(root: Path, patterns: Sequence[str]) -> str | None:
    """The first file that matches and has content, relative to root; patterns in order of preference."""
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            if read_text(path):
                return str(path.relative_to(root))
    return None
