import json
from pathlib import Path

import numpy as np
import pytest

from ergometer.analyze.raw import read_raw
from ergometer.core.errors import StoreError
from ergometer.core.sensor import Channel, Source
from ergometer.core.sensor_log import ENTRY, FORMAT, LOST, TICK

ZONE = Source(
    sensor="thermal", key="cpu", files=("x",), channels=(Channel(name="temperature.cpu", unit="°C", scale=1e-3),)
)
RAIL = Source(sensor="ina3221", key="VDD", files=("y",), channels=(Channel(name="power.VDD", unit="W"),))


def raw_file(path: Path, ticks: list[tuple[int, dict[int, bytes | None]]]) -> Path:
    header = {
        "format": FORMAT, "period_s": 0.01, "sources": [ZONE.to_json(), RAIL.to_json()], "groups": {"0": [0, 1]},
        "missing": {"rapl": "no zone"},
    }  # fmt: skip
    data = json.dumps(header).encode() + b"\n"
    for stamp, entries in ticks:
        data += TICK.pack(stamp, 0, len(entries))
        for index, raw in entries.items():
            data += ENTRY.pack(index, LOST if raw is None else len(raw)) + (raw or b"")
    path.write_bytes(data)
    return path


def test_unchanged_values_are_held_and_lost_ones_end(tmp_path: Path) -> None:
    path = raw_file(
        tmp_path / "raw", [(10, {0: b"40000", 1: b"2000"}), (20, {}), (30, {0: b"41000"}), (40, {1: None}), (50, {})]
    )
    samples = read_raw(path)
    (line,) = samples.timelines
    assert list(line.t_ns) == [10, 20, 30, 40, 50]
    assert list(line.values[:, 0]) == [40, 40, 41, 41, 41]
    np.testing.assert_array_equal(line.values[:, 1], [2, 2, 2, np.nan, np.nan])
    assert samples.missing == {"rapl": "no zone"}
    assert samples.notes == ()


def test_garbage_is_counted_and_left_out(tmp_path: Path) -> None:
    samples = read_raw(raw_file(tmp_path / "raw", [(10, {0: b"40000"}), (20, {0: b"banana"}), (30, {0: b"42000"})]))
    np.testing.assert_array_equal(samples.timelines[0].values[:, 0], [40, np.nan, 42])
    assert "banana" in samples.notes[0]


def test_a_file_cut_anywhere_gives_what_it_holds(tmp_path: Path) -> None:
    whole = raw_file(tmp_path / "raw", [(n * 10, {0: b"%d" % (40000 + n)}) for n in range(6)]).read_bytes()
    start = whole.index(b"\n") + 1
    counts = []
    for end in range(start, len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:end])
        timelines = read_raw(tmp_path / "cut").timelines
        counts.append(len(timelines[0].t_ns) if timelines else 0)
    assert counts[0] == 0 and counts[-1] == 6
    assert counts == sorted(counts)


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", b'{"format": 99}\n', b"\x00\xff" * 50, b"[]\n"])
def test_what_is_no_raw_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "raw").write_bytes(data)
    with pytest.raises(StoreError, match="no samples"):
        read_raw(tmp_path / "raw")
