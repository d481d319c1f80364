"""The sampler's raw file -> Samples."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ergometer.core import registry
from ergometer.core.errors import StoreError
from ergometer.core.sensor import Sensor, Source
from ergometer.core.sensor_log import ENTRY, FORMAT, LOST, TICK
from ergometer.store.samples import Samples, Timeline


@dataclass(slots=True)
class _Series:
    """What one source said: parsed values, and at which tick of its group each begins to hold."""

    sensor: Sensor
    source: Source
    at: list[int] = field(default_factory=list)
    readings: list[bytes] = field(default_factory=list)
    garbage: int = 0
    example: str = ""
    lost_at: int | None = None

    def add(self, tick: int, raw: bytes) -> None:
        self.at.append(tick)
        self.readings.append(raw)

    def _parsed(self, raw: bytes) -> Sequence[float]:
        width = len(self.source.channels)
        try:
            parsed = self.sensor.parse(self.source, raw)
            if len(parsed) != width:
                raise ValueError(f"{len(parsed)} values for {width} channels")
            return parsed
        except (ValueError, IndexError, ZeroDivisionError) as error:
            self.garbage += 1
            self.example = self.example or f"{raw[:40]!r} ({error})"
            return [float("nan")] * width

    def columns(self, ticks: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        width = len(self.source.channels)
        out = np.full((ticks, width), np.nan)
        if self.at:
            end = ticks if self.lost_at is None else self.lost_at
            starts = np.array(self.at)
            lengths = np.diff(starts, append=max(end, starts[-1]))
            values = np.array([self._parsed(raw) for raw in self.readings], dtype=np.float64).reshape(-1, width)
            held = np.repeat(values, lengths, axis=0)
            out[starts[0] : starts[0] + len(held)] = held
        return out


def read_raw(path: Path) -> Samples:
    """Samples of a raw file. A file cut short (the sampler was killed) gives what it holds."""
    try:
        data = path.read_bytes()
        head, _, _ = data.partition(b"\n")
        header = json.loads(head)
        if header["format"] != FORMAT:
            raise ValueError(f"format {header['format']}")
        sources = [Source.from_json(source) for source in header["sources"]]
        missing = dict(header["missing"])
        groups = {int(number): members for number, members in header["groups"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} holds no samples ({error}).") from error
    series = [_Series(registry.load("sensors", source.sensor), source) for source in sources]
    stamps: dict[int, list[int]] = {number: [] for number in groups}
    position = len(head) + 1
    try:
        while position + TICK.size <= len(data):
            stamp, group, entries = TICK.unpack_from(data, position)
            position += TICK.size
            tick = len(stamps[group])
            complete: list[tuple[int, bytes | None]] = []
            for _ in range(entries):
                index, length = ENTRY.unpack_from(data, position)
                position += ENTRY.size
                raw = None if length == LOST else data[position : position + length]
                if raw is not None and len(raw) != length:
                    raise IndexError("cut short")
                position += 0 if length == LOST else length
                complete.append((index, raw))
            stamps[group].append(stamp)
            for index, raw in complete:
                if raw is None:
                    series[index].lost_at = tick
                else:
                    series[index].add(tick, raw)
    except (IndexError, KeyError, struct.error):
        pass  # cut short: what came before is whole
    for item in series:
        item.source = item.sensor.calibrate(item.source, item.readings)
    timelines = tuple(_timelines(groups, stamps, series))
    facts = {f"{item.source.sensor}:{item.source.key}": item.source.facts for item in series if item.source.facts}
    return Samples(timelines, tuple(_notes(series)), missing, facts)


def _timelines(groups: dict[int, list[int]], stamps: dict[int, list[int]], series: list[_Series]) -> list[Timeline]:
    timelines = []
    for number, members in groups.items():
        if not stamps[number] or not (members or number == 0):
            continue
        t_ns = np.array(stamps[number], dtype=np.int64)
        columns = [np.empty((len(t_ns), 0)), *(series[index].columns(len(t_ns)) for index in members)]
        channels = tuple(channel for index in members for channel in series[index].source.channels)
        timelines.append(Timeline(t_ns, channels, np.concatenate(columns, axis=1)))
    return timelines


def _notes(series: list[_Series]) -> list[str]:
    notes = []
    for item in series:
        name = f"{item.source.sensor}:{item.source.key}"
        if item.garbage:
            notes.append(f"{name} gave {item.garbage} unusable readings, such as {item.example}")
    return notes
