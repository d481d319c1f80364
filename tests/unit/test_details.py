"""What a page says of a run: no number without how it was obtained, nothing lost in silence."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.core.record import Record
from ergometer.core.spec import Spec
from ergometer.report.details import _steps, details
from ergometer.report.html import script_text, to_text
from ergometer.report.verdict import tone, verdict
from ergometer.store.database import Store
from ergometer.store.spans import SpanTable
from tests.planted import S, Span, plant, record_of


def found_in(home: Path, run: str) -> Record:
    with Store(home) as store:
        return store.get(run)


def test_every_number_says_how_it_was_obtained(home: Path) -> None:
    data = details(found_in(home, plant(home, seconds=2).id))
    assert all(metric["how"] and metric["text"] for metric in data["metrics"].values())
    assert data["metrics"]["energy_per_step"]["how"] == "estimated, not measured; n = 100; by a power model"
    assert "directory" not in data and str(home) not in to_text(data)
    assert data["missing"] == []


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (Spec(model="lenet", batch=16), ["14.5 ms", "80 MB"]),
        (Spec(model="lenet", batch=16, mode="infer"), ["1.90 ms"]),
        (Spec(model="lenet", batch=17), []),
        (Spec(model="lenet", batch=16, input=(1, 32, 32)), []),
        (Spec(model="alexnet", batch=1), []),
        (Spec(model="alexnet:variant=emdl21", batch=1), []),
        (Spec(model="alexnet:variant=emdl21", batch=1, input=(3, 224, 224)), ["523 ms", "808 MB"]),
        (Spec(model="net.py:build", batch=1), []),
    ],
)
def test_a_published_value_stands_beside_the_same_measurement_only(home: Path, spec: Spec, expected: list[str]) -> None:
    data = details(found_in(home, plant(home, seconds=2, spec=spec).id))
    assert [item["text"] for item in data["published"]] == expected
    if expected:
        assert "EMDL21: Huawei Mate 30, MNN" in data["published"][0]["where"]


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=3000))
def test_every_timed_step_is_in_the_distribution_or_counted_beyond_it(lengths: list[int]) -> None:
    spans = [Span(at * 2 * S, at * 2 * S + length, "step", "timed", at) for at, length in enumerate(lengths)]
    data = _steps(SpanTable.of(spans))
    assert data is not None
    assert sum(data["counts"]) + data["beyond"] == len(lengths)
    assert data["beyond"] <= 0.01 * len(lengths) and data["slowest"] == pytest.approx(max(lengths) * 1e-9)
    assert len(data["median"]) <= 1500 and np.max(data["highest"]) == pytest.approx(data["slowest"])


@given(st.text())
def test_no_text_ends_the_script_that_holds_it(text: str) -> None:
    held = script_text({"name": text + "</script><!--"})
    assert "<" not in held
    assert json.loads(held)["name"] == text + "</script><!--"


def test_a_number_that_is_none_is_null() -> None:
    assert to_text({"a": float("nan"), "b": [float("inf"), 1.5]}) == '{"a":null,"b":[null,1.5]}'


def test_a_run_that_failed_says_how() -> None:
    failed = Record(id="r", spec=Spec(model="lenet"), status="out_of_memory", started_at="", reason="killed at 1 GB")
    assert verdict(failed) == "Out of memory: killed at 1 GB." and tone(failed) == "bad"
    assert verdict(record_of("r-001", Spec(model="lenet"))).endswith("at its peak and about 20 mJ a step.")
    doubtful = record_of("r-001", Spec(model="lenet"), warnings=("unstable: drift",))
    assert tone(doubtful) == "doubtful" and tone(record_of("r-001", Spec(model="lenet"))) == "good"


def test_the_plotting_library_is_the_one_that_was_published() -> None:
    """uPlot 1.6.32, as its authors released it."""
    import hashlib

    import ergometer.report

    assets = Path(ergometer.report.__file__).parent / "assets"
    found = hashlib.sha256((assets / "uplot.min.js").read_bytes()).hexdigest()
    assert found == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "MIT" in (assets / "uplot.LICENSE").read_text()
