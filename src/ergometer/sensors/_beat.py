"""The sampler's beat: waiting for the next moment to read and, where it was compiled, reading files and clocks."""

import ctypes
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ergometer.core.clock import now_ns
from ergometer.core.sensor import ClockRead, FileRead, Read
from ergometer.core.sensor_log import ENTRY, LOST, TICK

LIBRARY = Path(__file__).with_name("beat.so")
_CLOCK_BYTES = 32
_BUFFER_BYTES = 1 << 18
_RETURN, _ABANDONED = 1, 2
_PR_SET_TIMERSLACK = 29


@dataclass(slots=True)
class Group:
    """Sources that are read together, at most once per period."""

    number: int
    period_ns: int
    due_ns: int = 0
    members: list[tuple[int, Read]] = field(default_factory=list)


def join_the_ticks(period_ns: int) -> None:
    """Let this thread wake up to two fifths of a period late, together with the kernel's own tick.

    A timer of its own costs the measured program as much as all the reading (docs/benchmarks.md).
    """
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(2 * period_ns // 5))


class Beat:
    """Only waits: the sampler reads everything itself, in Python."""

    def __init__(self, period_ns: int):
        self._period_ns = period_ns
        self._next_ns = now_ns()

    def run(self, until_ns: int) -> int:
        """Wait for the next beat and return its time; a compiled beat reads, and returns at until_ns."""
        next_ns = self._next_ns
        time.sleep(max(0.0, (next_ns - now_ns()) * 1e-9))
        self._next_ns += self._period_ns
        late_ns = now_ns() - self._next_ns
        if late_ns > 0:  # keep to the beat: skip what was missed, do not catch up in a burst
            self._next_ns += -(-late_ns // self._period_ns) * self._period_ns
        return next_ns

    def interrupt(self) -> None:
        """Have run() return soon."""

    def read_now(self) -> None:
        """One more reading of every source of this beat."""

    def is_full(self) -> bool:
        """Whether take() must be called before run()."""
        return False

    def take(self) -> bytes:
        """What was read since the last call, in the raw file's layout."""
        return b""

    def latest(self) -> dict[int, bytes]:
        """The newest bytes of each source of this beat."""
        return {}

    def failures(self) -> dict[int, OSError]:
        """Sources that failed since the last call."""
        return {}

    def stuck(self, longer_than_ns: int) -> int | None:
        """The source whose reading has not come back."""
        return None

    def without(self, index: int) -> "Beat":
        """A beat for another thread that goes on without the source at which this one hangs."""
        return self


class _Source(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int32) for name in ("index", "size", "files", "clock", "length", "failed")),
        ("descriptors", ctypes.POINTER(ctypes.c_int32)),
        ("last", ctypes.c_void_p),
    ]


class _Group(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("period", "due")),
        *((name, ctypes.c_int32) for name in ("number", "count")),
        ("sources", ctypes.POINTER(_Source)),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("period", "next", "until", "since")),
        *((name, ctypes.c_int32) for name in ("stop", "reading", "failures", "count", "used", "full")),
        ("groups", ctypes.POINTER(_Group)),
        ("buffer", ctypes.c_void_p),
    ]


def library() -> ctypes.CDLL | None:
    """The compiled beat, or None: it was not compiled, or for another machine."""
    try:
        return ctypes.CDLL(str(LIBRARY))
    except OSError:
        return None


def can_read(read: Read) -> bool:
    """Whether the compiled beat can do what this function does."""
    return isinstance(read, ClockRead) or (isinstance(read, FileRead) and _room(read) < LOST)


def _room(read: Read) -> int:
    return len(read.descriptors) * (read.size + 1) if isinstance(read, FileRead) else _CLOCK_BYTES


class CompiledBeat(Beat):
    """Reads the files and clocks of the given groups in beat.c, without the interpreter."""

    def __init__(self, period_ns: int, groups: Sequence[Group]):
        super().__init__(period_ns)
        self._groups = groups
        compiled = library()
        assert compiled is not None
        self._run = compiled.beat
        self._run.restype = ctypes.c_int64
        self._held: list[object] = []  # what C points at must not be collected
        self._sources: list[_Source] = []
        rows = (_Group * len(groups))()
        for row, group in zip(rows, groups, strict=True):
            sources = (_Source * len(group.members))(*(self._source(index, read) for index, read in group.members))
            self._sources += sources
            row.period, row.number, row.count, row.sources = group.period_ns, group.number, len(sources), sources
            self._held.append(sources)
        most = sum(TICK.size + sum(ENTRY.size + _room(read) for _, read in group.members) for group in groups)
        self._buffer = ctypes.create_string_buffer(_BUFFER_BYTES + most)
        self._before = b""
        self._state = _State(
            period=period_ns, next=now_ns(), reading=-1, count=len(groups), full=_BUFFER_BYTES,
            groups=rows, buffer=ctypes.addressof(self._buffer),
        )  # fmt: skip

    def _source(self, index: int, read: Read) -> _Source:
        last = ctypes.create_string_buffer(max(1, _room(read)))
        self._held.append(last)
        made = _Source(index=index, length=-1, last=ctypes.addressof(last))
        if isinstance(read, FileRead):
            made.descriptors = (ctypes.c_int32 * len(read.descriptors))(*read.descriptors)
            made.files, made.size = len(read.descriptors), read.size
        elif isinstance(read, ClockRead):
            made.clock = read.clock
        return made

    def run(self, until_ns: int) -> int:
        self._state.until = until_ns
        reached_ns = int(self._run(ctypes.byref(self._state)))
        self._state.stop &= _ABANDONED
        return reached_ns

    def interrupt(self) -> None:
        self._state.stop |= _RETURN

    def read_now(self) -> None:
        for row in self._state.groups[: len(self._groups)]:
            row.due = 0
        self._state.next = now_ns()
        self.run(0)

    def is_full(self) -> bool:
        return bool(self._state.used > self._state.full)

    def take(self) -> bytes:
        taken = self._before + ctypes.string_at(self._buffer, self._state.used)
        self._before, self._state.used = b"", 0
        return taken

    def latest(self) -> dict[int, bytes]:
        return {s.index: ctypes.string_at(s.last, s.length) for s in self._sources if s.length > 0 and not s.failed}

    def failures(self) -> dict[int, OSError]:
        if not self._state.failures:
            return {}
        self._state.failures = 0
        found = {s.index: OSError(s.failed, os.strerror(s.failed)) for s in self._sources if s.failed > 0}
        for source in self._sources:
            source.failed = -abs(source.failed)  # said once, and still not read again
        return found

    def stuck(self, longer_than_ns: int) -> int | None:
        index, since_ns = self._state.reading, self._state.since
        return index if index >= 0 and now_ns() - since_ns >= longer_than_ns else None

    def without(self, index: int) -> Beat:
        self._state.stop = _ABANDONED
        gone = {source.index for source in self._sources if source.failed} | {index}
        number = next(g.number for g in self._groups if index in [at for at, _ in g.members])
        groups = [
            Group(g.number, g.period_ns, members=[m for m in g.members if m[0] not in gone]) for g in self._groups
        ]
        made = CompiledBeat(self._period_ns, groups)
        lost = TICK.pack(self._state.since, number, 1) + ENTRY.pack(index, LOST)
        made._before = self.take() + lost
        return made
