import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest

from ergometer.core.errors import StoreError, UsageError
from ergometer.core.record import Metric, Record
from ergometer.core.sensor import Channel
from ergometer.core.span import Span
from ergometer.core.spec import Spec
from ergometer.store.database import LOCK, Store
from ergometer.store.home import Lock, home, make_run_directory, write_json
from ergometer.store.samples import Samples, Timeline
from ergometer.store.spans import SpanTable


def record(number: int, status: str = "ok", directory: str = "") -> Record:
    return Record(
        id=f"20260101-0000{number:02}-abcd", spec=Spec(model="lenet", batch=number + 1), status=status,
        started_at=f"2026-01-01T00:00:{number:02}", metrics={"step_time": Metric(value=0.5, unit="s", n=7)},
        directory=directory,
    )  # fmt: skip


def test_records_come_back_in_order(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        for number in (2, 0, 1):
            store.put(record(number))
        assert [found.spec.batch for found in store.records()] == [1, 2, 3]
        assert [found.spec.batch for found in store.records(limit=2)] == [2, 3]
        assert store.get("last").id == record(2).id
        assert store.get("20260101-000001").spec == record(1).spec
        store.put(record(1, status="failed"))
        assert len(store.records()) == 3


def test_a_wrong_or_ambiguous_id_is_refused(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        with pytest.raises(UsageError, match="ergo runs"):
            store.get("last")
        store.put(record(0))
        store.put(record(1))
        with pytest.raises(UsageError, match="2 runs begin"):
            store.get("2026")
        with pytest.raises(UsageError, match="no run"):
            store.get("%")


def test_metrics_can_be_queried_with_sql(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put(record(0))
        store.put(record(0))
    rows = sqlite3.connect(tmp_path / "ergometer.db").execute("SELECT name, value, unit, n FROM metrics").fetchall()
    assert rows == [("step_time", 0.5, "s", 7)]


def test_a_run_whose_parent_died_is_interrupted(tmp_path: Path) -> None:
    directory = make_run_directory(tmp_path, record(0).id)
    with Store(tmp_path) as store:
        lock = Lock(directory / LOCK)
        assert lock.acquire(wait=False)
        store.put(record(0, status="running", directory=str(directory)))
        assert store.records()[0].status == "running"
        lock.release()
        assert store.records()[0].status == "interrupted"
        assert "killed" in store.get("last").reason


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with Store(tmp_path) as store:
                store.put(record(number))
        except Exception as error:  # noqa: BLE001 - whatever it is, the test must see it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with Store(tmp_path) as store:
        assert len(store.records()) == 12


def test_a_store_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.put(record(0))
    with sqlite3.connect(tmp_path / "ergometer.db") as connection:
        connection.execute("INSERT INTO migrations VALUES (999, 'the future')")
    before = (tmp_path / "ergometer.db").read_bytes()
    with pytest.raises(StoreError, match="upgrade"):
        Store(tmp_path)
    assert (tmp_path / "ergometer.db").read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ergometer.db").write_bytes(b"not a database at all, but long enough to be read as one" * 40)
    with pytest.raises(StoreError, match="ERGO_HOME"):
        Store(tmp_path)
    assert (tmp_path / "ergometer.db").read_bytes().startswith(b"not a database")


def test_a_home_that_cannot_be_made_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="ERGO_HOME"):
        Store(tmp_path / "file" / "home")


def test_home_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERGO_HOME", str(tmp_path / "a"))
    assert home() == tmp_path / "a"
    monkeypatch.delenv("ERGO_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "b"))
    assert home() == tmp_path / "b/ergometer"


def test_a_failed_write_leaves_the_old_file_whole(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="ERGO_HOME"):
        write_json(tmp_path / "absent" / "x.json", [1])
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert (tmp_path / "x.json").read_text() == '{\n "a": 1\n}\n'


def test_spans_and_samples_survive_the_disk(tmp_path: Path) -> None:
    spans = SpanTable.of([Span(5, 9, "op", "conv", 1, "forward", "a.b", 100), Span(7, 8, "step", "timed", 2)])
    spans.save(tmp_path / "spans.npz")
    again = SpanTable.load(tmp_path / "spans.npz")
    assert again.words == spans.words
    for field in ("start_ns", "end_ns", "step", "memory_bytes", "kind", "name", "phase", "layer"):
        np.testing.assert_array_equal(getattr(again, field), getattr(spans, field))

    line = Timeline(
        np.array([1, 5, 9]), (Channel(name="power.x", unit="W", wrap=3.5),), np.array([[1.0], [np.nan], [3.0]])
    )
    Samples((line,), ("note",), {"rapl": "why"}).save(tmp_path / "samples.npz")
    found = Samples.load(tmp_path / "samples.npz")
    assert (found.notes, found.missing) == (("note",), {"rapl": "why"})
    assert found.timelines[0].channels == line.channels
    np.testing.assert_array_equal(found.timelines[0].values, line.values)
    np.testing.assert_array_equal(found.timelines[0].t_ns, line.t_ns)


@pytest.mark.parametrize("kind", [SpanTable, Samples])
@pytest.mark.parametrize("damage", ["missing", "empty", "text", "cut", "foreign"])
def test_damaged_details_are_refused_in_words(tmp_path: Path, kind: type, damage: str) -> None:
    path = tmp_path / "x.npz"
    SpanTable.of([Span(0, 1, "op", "conv")]).save(path)
    if damage == "missing":
        path.unlink()
    elif damage == "foreign":
        np.savez(path, other=np.zeros(3))
    else:
        path.write_bytes({"empty": b"", "text": b"hello", "cut": path.read_bytes()[:40]}[damage])
    with pytest.raises(StoreError, match=r"missing|damaged"):
        kind.load(path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", words=np.array([object()], dtype=object), allow_pickle=True)
    with pytest.raises(StoreError):
        SpanTable.load(tmp_path / "x.npz")
