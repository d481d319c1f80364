"""Choosing records by what decided them, and their form as a table."""

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ergometer.core.errors import StoreError, UnavailableError, UsageError
from ergometer.core.record import Metric, Record
from ergometer.core.spec import Spec
from ergometer.report import machine, table
from ergometer.store.database import Store
from ergometer.store.query import Query, Records


def record(number: int, status: str = "ok", **spec: Any) -> Record:
    return Record(
        id=f"20260101-{number:06}-abcd",
        spec=Spec(**({"model": "lenet"} | spec)),
        status=status,
        started_at=f"2026-01-01T00:00:{number:02}",
        host={"name": "pi", "processor": "Cortex-A72"},
        metrics={"step_time": Metric(value=0.01 * (number + 1), unit="s", n=20, low=0.009, high=0.2)},
    )


SOME = [
    record(0, batch=1),
    record(1, batch=16),
    record(2, batch=16, engine="mnn", input=(3, 32, 32)),
    record(3, model="resnet50", batch=16, options={"layout": "channels_last"}),
    record(4, model="conv_only:width=64,depth=4", status="failed"),
]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    for item in SOME:
        store.put(item)
    return store


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("", [0, 1, 2, 3, 4]),
        ("model=lenet", [0, 1, 2]),
        ("model=lenet,batch=16,engine=torch", [1]),
        ("batch=1|16,engine=torch", [0, 1, 3, 4]),
        ("model=res*", [3]),
        ("layout=channels_last", [3]),
        ("status=failed", [4]),
        ("model=conv_only:width=64,depth=4,mode=train", [4]),
        ("host=pi,id=20260101-000002*", [2]),
        ("input=3x32x32", [2]),
        ("batch=17", []),
    ],
)
def test_conditions_choose_records(store: Store, where: str, numbers: list[int]) -> None:
    assert [item.id for item in store.query(where)] == [SOME[number].id for number in numbers]


def test_conditions_as_arguments(store: Store) -> None:
    assert [item.id for item in store.query(model="lenet", batch=16)] == [SOME[1].id, SOME[2].id]


@pytest.mark.parametrize(
    ("where", "says"),
    [("modl=lenet", "did you mean model"), ("lenet", "write field=value"), ("batch=", "write field=value")],
)
def test_a_wrong_condition_gets_one_sentence(where: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Query.parse(where)


def test_a_value_is_no_sql(store: Store) -> None:
    assert store.query(model="x' OR '1'='1") == []
    assert len(store.query()) == len(SOME)


def test_rows_are_flat_and_csv_reads_back() -> None:
    text = table.csv_text(Records(SOME).rows())
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["model"] for row in rows] == [item.spec.model for item in SOME]
    assert (
        float(rows[1]["step_time"]) == 0.02 and rows[1]["step_time.unit"] == "s" and rows[1]["step_time.high"] == "0.2"
    )
    assert rows[3]["option.layout"] == "channels_last" and rows[0]["option.layout"] == ""


def test_markdown_keeps_its_cells() -> None:
    hostile = record(5, model="a|b<script>\nnet.py:build")
    lines = table.markdown(Records([*SOME, hostile]).rows()).splitlines()
    assert len(lines) == 2 + 6 and len({line.replace("\\|", "").count("|") for line in lines}) == 1
    assert "<script>" not in lines[-1] and "20 ms" in lines[3]


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_data_frame_of_what_is_installed(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(DataFrame=dict) if name == package else None)
    frame = Records(SOME).to_dataframe()
    assert frame["step_time"][:2] == [0.01, 0.02] and frame["option.layout"] == [
        None,
        None,
        None,
        "channels_last",
        None,
    ]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnavailableError, match="pip install pandas"):
        Records(SOME).to_dataframe()


def test_parquet_reads_back(tmp_path: Path) -> None:
    from pyarrow import parquet

    table.write_parquet(Records(SOME).rows(), tmp_path / "x.parquet")
    found = parquet.read_table(tmp_path / "x.parquet").to_pydict()
    assert found["model"][0] == "lenet" and found["step_time"][1] == 0.02


def test_records_travel_without_duplicates(store: Store, tmp_path: Path) -> None:
    machine.write_records(store.query(), str(tmp_path / "out.json.gz"), "-o")
    other = Store(tmp_path / "other")
    records = machine.read_records(str(tmp_path / "out.json.gz"))
    assert other.take(records) == (5, []) and other.take(records) == (0, [])
    changed = replace(records[0], reason="another")
    assert other.take([changed]) == (0, [changed.id]) and other.get(changed.id).reason == ""
    assert [item.spec for item in other.query()] == [item.spec for item in SOME]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"id": "../../escape"}, "no id of a run"),
        ({"format": 99}, "newer than this version"),
        ({"status": "running"}, "still running"),
        ({"spec": {"model": "x", "batch": -1}}, "out of range"),
        ({"metrics": {"step_time": {"value": "<script>", "unit": "s"}}}, "not a number"),
        ({"metrics": 3}, "not a record"),
    ],
)
def test_a_hostile_record_is_refused_and_nothing_is_taken(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps([SOME[0].to_json(), SOME[1].to_json() | change]))
    with pytest.raises((StoreError, UsageError), match=says):
        machine.read_records(str(path))


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '"x"', "\x00"])
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(StoreError):
        machine.read_records(str(path))
    with pytest.raises(UsageError, match="no such file"):
        machine.read_records(str(tmp_path / "none.json"))
