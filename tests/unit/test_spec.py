import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.core.errors import StoreError, UsageError
from ergometer.core.record import Metric, Record
from ergometer.core.spec import MAX_BATCH, Budget, Spec

specs = st.builds(
    Spec,
    model=st.text(min_size=1, max_size=20).filter(str.strip),
    mode=st.sampled_from(["train", "infer"]),
    batch=st.integers(1, MAX_BATCH),
    threads=st.none() | st.integers(1, 64),
    cores=st.none() | st.lists(st.integers(0, 8), min_size=1).map(tuple),
    input=st.none() | st.just((3, 8, 8)),
    seed=st.integers(0, 1000),
    budget=st.builds(Budget, time_s=st.none() | st.floats(0.1, 100), memory_bytes=st.none() | st.integers(1, 10**12)),
)


@given(specs)
def test_a_spec_survives_json(spec: Spec) -> None:
    again = Spec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again == spec
    assert again.id == spec.id


@given(specs, specs)
def test_ids_are_equal_exactly_when_specs_are(one: Spec, other: Spec) -> None:
    assert (one.id == other.id) == (one == other)


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0}, {"batch": -1}, {"batch": MAX_BATCH + 1}, {"threads": 0}, {"mode": "dream"}, {"classes": 1},
        {"period_s": 0.0001}, {"steps": 0}, {"warmup": -1}, {"budget": Budget(time_s=0)},
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"choose|must be"):
        Spec(model="lenet", **wrong)  # type: ignore[arg-type]


def test_a_spec_of_the_future_is_refused() -> None:
    with pytest.raises(StoreError, match="warp"):
        Spec.from_json({"model": "lenet", "warp": 9})


@given(
    specs,
    st.dictionaries(
        st.text(min_size=1, max_size=10),
        st.builds(
            Metric,
            value=st.floats(allow_nan=False, allow_infinity=False),
            unit=st.sampled_from(["s", "J", "W"]),
            n=st.integers(1, 10**6),
            low=st.none() | st.floats(allow_nan=False, allow_infinity=False),
            source=st.sampled_from(["timed", "counter", "integrated", "estimated"]),
        ),
        max_size=4,
    ),
)
def test_a_record_survives_json(spec: Spec, metrics: dict[str, Metric]) -> None:
    record = Record(id="x", spec=spec, status="ok", started_at="now", metrics=metrics, warnings=("hot",))
    assert Record.from_json(json.loads(json.dumps(record.to_json()))) == record


@pytest.mark.parametrize(
    "hostile", [{}, {"format": 1}, {"format": 1, "spec": 3}, {"format": "x"}, {"format": 1, "id": 1}]
)
def test_what_is_no_record_is_refused(hostile: dict[str, object]) -> None:
    with pytest.raises(StoreError):
        Record.from_json(hostile)


def test_a_newer_record_names_the_remedy() -> None:
    with pytest.raises(StoreError, match="upgrade"):
        Record.from_json({"format": 99, "id": "a"})
