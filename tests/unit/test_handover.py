"""How far apart the cores are: measured here, and what is said of it."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.analyze.metrics import Findings, add_handover, have_moved
from ergometer.core.record import Metric, Record
from ergometer.core.spec import Spec
from ergometer.report.comparison import remarks
from ergometer.run import handover
from ergometer.run.handover import handover_s

SECONDS = st.floats(1e-9, 1e-3)
needs_two = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@needs_two
def test_two_cores_hand_over_in_less_than_a_system_call_would_take() -> None:
    here = os.sched_getaffinity(0)
    found = [handover_s(here) for _ in range(20)]
    numbers = [value for value in found if isinstance(value, float)]
    assert numbers and 5e-9 < min(numbers) < 1e-5
    assert os.sched_getaffinity(0) == here and threading.active_count() < 20


@needs_two
def test_a_core_that_does_not_answer_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    assert str(handover_s((core, 4095))).startswith("core 4095 did not answer")


def test_why_it_is_not_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert handover_s([0]) == "there is one core alone"
    monkeypatch.setattr(handover, "LIBRARY", tmp_path / "missing.so")
    assert "not compiled" in str(handover_s([0, 1]))


@given(SECONDS, SECONDS)
def test_moving_has_no_direction(a: float, b: float) -> None:
    assert have_moved(a, b) == have_moved(b, a) == (max(a, b) / min(a, b) > 2)
    assert not have_moved(a, a) and not have_moved(a, None) and not have_moved(None, b)


def test_cores_that_moved_during_a_run_are_a_warning() -> None:
    stayed, moved, unknown = Findings(), Findings(), Findings()
    add_handover(stayed, 7e-8, 8e-8)
    assert stayed.metrics["handover_time"].value == pytest.approx(7.5e-8) and not stayed.warnings
    add_handover(moved, 7e-8, 3.5e-7)
    assert "took 70 ns before the run and 350 ns after it" in moved.warnings[0]
    add_handover(unknown, "there is one core alone", 7e-8)
    assert unknown.absent == {"handover_time": "there is one core alone"} and not unknown.metrics


def test_runs_with_cores_elsewhere_are_told_apart() -> None:
    def record(seconds: float) -> Record:
        made = Record(id="r", spec=Spec(model="lenet"), status="ok", started_at="")
        return replace(made, metrics={"handover_time": Metric(value=seconds, unit="s")})

    assert any("70 ns against 350 ns" in text for text in remarks([record(7e-8)], [record(3.5e-7)]))
    assert not any("from one core" in text for text in remarks([record(7e-8)], [record(8e-8)]))
