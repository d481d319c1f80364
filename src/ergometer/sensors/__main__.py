"""The sampler: a process of its own that reads every source on a fixed beat and stores raw bytes.

    python -m ergometer.sensors CONFIG.json

Nothing is parsed while it runs (but for the few values shown live), so that observing costs little; files
and clocks are read by the compiled beat, if there is one, and this loop wakes up only for the rest. It
speaks JSON lines on standard output (ready, live, lost, over_limit, error, stopped) and obeys lines on
standard input (flush, stop); the end of standard input means stop.

The raw file: one JSON line (format, period, sources), then ticks. A tick is TICK (time, group, number of
changed sources) followed by that many ENTRY (source, length) each with its bytes. A source of the group
that has no entry read the same bytes as before. Length LOST means that the source ended there.
"""

import gc
import json
import os
import resource
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ergometer.core import registry
from ergometer.core.clock import now_ns
from ergometer.core.errors import ErgoError
from ergometer.core.sensor import Read, Sensor, Source, Target
from ergometer.core.sensor_log import ENTRY, FORMAT, LOST, TICK
from ergometer.core.timebox import within
from ergometer.sensors._beat import Beat, CompiledBeat, Group, can_read, join_the_ticks, library

_HANG_S = 1.0
_HUNG = f"hung: a read took more than {_HANG_S:g} s"
_FLUSH_NS = 1_000_000_000
_MAX_RAW = LOST - 1
_LIVE = ("power.", "temperature.")
_SHOWN = 2


class Sampler:
    def __init__(self, config: dict[str, Any]):
        self.period_ns = int(config["period_s"] * 1e9)
        self.target = Target(root=Path(config["root"]), pid=config["pid"], tree=config["tree"], exclude=(os.getpid(),))
        self.limit_pages = config["limit_bytes"] // os.sysconf("SC_PAGE_SIZE") if config["limit_bytes"] else None
        self.sources: list[Source] = []
        self.sensors: list[Sensor] = []
        self.reads: list[Read] = []
        self.messages: list[dict[str, Any]] = []
        self.missing: dict[str, str] = {}
        wanted = config["sensors"] if config["sensors"] is not None else registry.names("sensors")
        if self.limit_pages is not None and "memory" not in wanted:
            wanted = [*wanted, "memory"]  # a limit that is watched needs it, whatever the user asked for
        self._open_all(wanted)
        compiled, self.groups = self._group()
        self.beat = CompiledBeat(self.period_ns, compiled) if compiled else Beat(self.period_ns)
        self.of_process = {at for at, source in enumerate(self.sources) if source.sensor in ("memory", "process")}
        self.last: list[bytes] = [b""] * len(self.sources)
        self.limit_source = (
            next((index for index, source in enumerate(self.sources) if source.key == "statm"), None)
            if self.limit_pages
            else None
        )
        self.file = os.open(config["raw"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        header = {"format": FORMAT, "period_s": config["period_s"], "sources": [s.to_json() for s in self.sources]}
        header["missing"] = self.missing
        header["groups"] = {g.number: [index for index, _ in g.members] for g in (*compiled, *self.groups)}
        os.write(self.file, json.dumps(header).encode() + b"\n")
        self.pending: list[tuple[int, int, list[tuple[int, Read]], list[bytes | None]]] = []
        self.stopping = self.failed = False
        self.flush_wanted = threading.Event()
        self.flushed = threading.Event()
        self.generation = 0
        self.reading = -1
        self.since_ns = 0
        self.started_ns, self.started_cpu = now_ns(), 0.0

    def _open_all(self, wanted: list[str]) -> None:
        for name in wanted:
            sensor: Sensor = registry.load("sensors", name)
            try:
                found = within(_HANG_S, partial(sensor.sources, self.target))
                if not found:
                    probe = within(_HANG_S, partial(sensor.probe, self.target.root))
                    self.missing[name] = probe.reason
            except Exception as error:  # noqa: BLE001 - one broken sensor must not stop the others
                self.missing[name] = f"probing it failed: {error}"
                self.messages.append({"event": "lost", "source": name, "reason": self.missing[name]})
                continue
            for source in found:
                try:
                    read = within(_HANG_S, partial(sensor.open, source, self.target))
                    within(_HANG_S, read)
                except Exception as error:  # noqa: BLE001 - likewise
                    reason = f"the first read failed: {error}"
                    self.messages.append({"event": "lost", "source": f"{name}:{source.key}", "reason": reason})
                    continue
                self.sources.append(source)
                self.sensors.append(sensor)
                self.reads.append(read)

    def _group(self) -> tuple[list[Group], list[Group]]:
        """Sources that the compiled beat reads, and the others. Group 0 is read every tick, the last at the ends."""
        beaten = library() is not None
        groups: dict[tuple[int, bool], Group] = {(0, beaten): Group(0, 0)}
        ends = Group(255, 0)
        for index, (source, read) in enumerate(zip(self.sources, self.reads, strict=True)):
            period_ns = int(source.period_s * 1e9)
            watched = self.limit_pages is not None and source.key == "statm"  # a limit is watched at every tick
            period_ns = period_ns if period_ns > self.period_ns and not watched else 0
            key = period_ns, beaten and can_read(read) and not watched
            group = ends if source.at_ends else groups.setdefault(key, Group(len(groups), period_ns))
            group.members.append((index, read))
        compiled = [group for (_, by_beat), group in groups.items() if by_beat]
        return compiled, [*(group for (_, by_beat), group in groups.items() if not by_beat), ends]

    def _tick(self, group: Group, generation: int) -> None:
        """Read every source of a group and keep the raw bytes; a source that fails is dropped from it.

        As little as can be is done here: a tick wakes up with cold caches, in the midst of what it measures.
        """
        members, lost = group.members, []
        raws: list[bytes | None] = []
        stamp = self.since_ns = now_ns()
        for index, read in members:
            self.reading = index
            try:
                raws.append(read())
            except Exception as error:  # noqa: BLE001 - one broken sensor must not stop the others
                raws.append(None)
                lost.append(index)
                self._vanish(index, error)
        self.reading = -1
        if generation != self.generation:
            return  # the supervisor gave this thread up while it hung, and nothing of this tick is kept
        self.pending.append((stamp, group.number, members, raws))
        if self.limit_source is not None:
            self._check_limit(members, raws)
        if lost:
            group.members = [member for member in members if member[0] not in lost]

    def _check_limit(self, members: list[tuple[int, Read]], raws: list[bytes | None]) -> None:
        for (index, _), raw in zip(members, raws, strict=True):
            if index == self.limit_source and raw and int(raw.split()[1]) > (self.limit_pages or 0):
                say({"event": "over_limit"})

    def _encode(self) -> bytes:
        """The ticks since the last flush in the file's layout; bytes that have not changed are left out."""
        ticks, self.pending = self.pending, []
        last, parts = self.last, []
        for stamp, number, members, raws in ticks:
            entries = []
            for (index, _), raw in zip(members, raws, strict=True):
                if raw is None:
                    entries.append(ENTRY.pack(index, LOST))
                elif raw != last[index]:
                    last[index] = raw = raw[:_MAX_RAW]
                    entries.append(ENTRY.pack(index, len(raw)) + raw)
            parts.append(TICK.pack(stamp, number, len(entries)) + b"".join(entries))
        return b"".join(parts)

    def _lose(self, index: int, reason: str) -> None:
        source = self.sources[index]
        self.messages.append({"event": "lost", "source": f"{source.sensor}:{source.key}", "reason": reason})

    def _vanish(self, index: int, error: Exception) -> None:
        # That the measured process has ended, its parent knows best.
        if not (isinstance(error, ProcessLookupError | FileNotFoundError) and index in self.of_process):
            self._lose(index, f"vanished: {getattr(error, 'strerror', None) or error}")

    def _note_failures(self) -> None:
        for index, error in self.beat.failures().items():
            self._vanish(index, error)

    def _flush(self) -> None:
        view = memoryview(self.beat.take() + self._encode())
        while view:
            view = view[os.write(self.file, view) :]

    def loop(self, generation: int) -> None:
        groups, beat = self.groups[:-1], self.beat
        if not any(channel.unit in ("W", "J") for source in self.sources for channel in source.channels):
            join_the_ticks(self.period_ns)  # but energy is right only if power is read regularly
        flush_ns = now_ns() + _FLUSH_NS
        try:
            while not self.stopping and generation == self.generation:
                at_ns = beat.run(min([flush_ns, *(group.due_ns for group in groups)]))
                flush = self.flush_wanted.is_set()
                if flush and generation == self.generation:
                    beat.read_now()
                for group in groups:
                    if generation != self.generation:
                        return  # a read hung, and another thread has taken over
                    if at_ns >= group.due_ns or flush:
                        group.due_ns = at_ns + group.period_ns
                        self._tick(group, generation)
                self._note_failures()
                if at_ns >= flush_ns or flush or beat.is_full():
                    self._flush()
                    flush_ns = at_ns + _FLUSH_NS
                    if flush:
                        self.flush_wanted.clear()
                        self.flushed.set()
        except OSError as error:
            self.failed = True
            self.messages.append({"event": "error", "reason": f"samples cannot be written: {error.strerror}"})

    def _start_thread(self) -> threading.Thread:
        thread = threading.Thread(target=self.loop, args=(self.generation,), daemon=True)
        thread.start()
        return thread

    def _replace_if_hung(self, thread: threading.Thread) -> threading.Thread:
        return self._start_thread() if self._leave_hung() else thread

    def _leave_hung(self) -> bool:
        """Whether a reading hangs; the source is left behind, and with it the thread that reads it."""
        stuck = self.beat.stuck(int(_HANG_S * 1e9))
        if stuck is not None:
            self.generation += 1
            self._lose(stuck, _HUNG)
            self.beat = self.beat.without(stuck)
            return True
        index, since_ns = self.reading, self.since_ns
        if index < 0 or now_ns() - since_ns < _HANG_S * 1e9:
            return False
        self.generation += 1
        self._lose(index, _HUNG)
        for group in self.groups:
            hung = [member for member in group.members if member[0] == index]
            if hung:
                self.pending.append((since_ns, group.number, hung, [None]))
                group.members = [member for member in group.members if member[0] != index]
        self.reading = -1
        return True

    def _live(self) -> dict[str, float]:
        """The newest powers and the highest temperature, for a person who watches."""
        values: dict[str, float] = {}
        newest = self.beat.latest() | {index: raw for index, raw in enumerate(self.last) if raw}
        for index, raw in newest.items():
            source = self.sources[index]
            if any(channel.name.startswith(_LIVE) for channel in source.channels):
                try:
                    parsed = self.sensors[index].parse(source, raw)
                except ValueError:
                    continue  # counted as garbage when the run is analysed
                values |= {c.name: v for c, v in zip(source.channels, parsed, strict=True) if c.name.startswith(_LIVE)}
        hottest = max((name for name in values if name.startswith("temperature.")), key=lambda n: values[n], default="")
        powers = [name for name in values if name.startswith("power.")][:_SHOWN]
        return {name: values[name] for name in (*powers, hottest) if name}

    def _cost(self) -> dict[str, float]:
        """What sampling has taken so far, commands that sensors run included."""
        wall_s, cpu_s = (now_ns() - self.started_ns) * 1e-9, cpu_time_s() - self.started_cpu
        return {"wall_s": wall_s, "cpu_s": cpu_s}

    def run(self) -> None:
        parent = os.getppid()
        self._tick(self.groups[-1], 0)
        self.started_ns, self.started_cpu = now_ns(), cpu_time_s()
        thread = self._start_thread()
        compiled = isinstance(self.beat, CompiledBeat)
        say({"event": "ready", "sources": len(self.sources), "compiled": compiled})
        pending = b""
        while True:
            readable, _, _ = select.select([0], [], [], 1.0)
            if readable:
                data = os.read(0, 4096)
                pending += data
                *lines, pending = pending.split(b"\n")
                if not data or b"stop" in lines:
                    break
                if b"flush" in lines:
                    self.flush_wanted.set()
                    self.beat.interrupt()
                    self.flushed.wait(2 * _HANG_S)
                    self.flushed.clear()
                    say({"event": "flushed", **self._cost()})
            if os.getppid() != parent:
                break  # the parent was killed: do not outlive it
            thread = self._replace_if_hung(thread)
            self._say_messages()
            live = self._live()
            if live:
                say({"event": "live", "values": live})
        self.stopping = True
        self.beat.interrupt()
        thread.join(2 * _HANG_S)
        self._leave_hung()
        cost = self._cost()
        self._finish()
        say({"event": "stopped", **cost})

    def _finish(self) -> None:
        try:
            # Once more, so that the samples reach up to the end.
            ticks: list[Callable[[], None]] = [partial(self._tick, group, self.generation) for group in self.groups]
            for tick in [self.beat.read_now, *ticks]:
                try:
                    within(_HANG_S, tick)
                except TimeoutError:
                    self._leave_hung()
            self._note_failures()
            self._flush()
        except OSError as error:
            if not self.failed:
                self.messages.append({"event": "error", "reason": f"samples cannot be written: {error.strerror}"})
        self._say_messages()

    def _say_messages(self) -> None:
        while self.messages:
            say(self.messages.pop(0))


def cpu_time_s() -> float:
    """CPU time of this process and of the commands that it has run."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def say(message: dict[str, Any]) -> None:
    """One line to the parent. Where it does not read, as in a long window of measure(), live values are dropped."""
    line = json.dumps(message).encode() + b"\n"
    while True:
        try:
            os.write(1, line)
            return
        except BlockingIOError:
            if message["event"] == "live":
                return
            select.select([], [1], [], _HANG_S)
        except BrokenPipeError:
            os._exit(0)  # nobody listens any more


def main() -> None:
    config = json.loads(sys.argv[1])
    os.set_blocking(1, False)
    if config["cores"]:
        os.sched_setaffinity(0, config["cores"])
    try:
        # A late sample is a wrong sample: wake before the threads that are being measured.
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    except PermissionError:
        pass
    try:
        sampler = Sampler(config)
        gc.collect()
        gc.disable()
        sampler.run()
    except (ErgoError, OSError) as error:
        say({"event": "error", "reason": f"the sampler cannot start: {error}"})
    os._exit(0)  # a thread that hangs in a driver must not keep the process


if __name__ == "__main__":
    main()
