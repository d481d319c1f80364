import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergometer.core.errors import UsageError
from ergometer.core.quantity import format_shape, format_value, parse_bytes, parse_seconds, parse_shape


@pytest.mark.parametrize(
    ("text", "size"), [("1GB", 10**9), ("256MiB", 256 << 20), ("500 mb", 5 * 10**8), ("1.5K", 1500), ("7", 7)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1XB", "1e9"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write it like"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "seconds"), [("10ms", 0.01), ("1s", 1.0), ("2min", 120.0), ("0.5", 0.5)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "ten", "-1s", "1h"])
def test_a_wrong_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write it like"):
        parse_seconds(text)


@given(st.lists(st.integers(1, 4096), min_size=1, max_size=4))
def test_a_shape_survives_writing_and_reading(sizes: list[int]) -> None:
    assert parse_shape(format_shape(tuple(sizes))) == tuple(sizes)


@pytest.mark.parametrize("text", ["", "3x", "ax3", "3x-1", "0x3"])
def test_a_wrong_shape_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="3x224x224"):
        parse_shape(text)


@given(st.floats(1e-8, 1e13), st.sampled_from(["s", "J", "W", "Hz"]))
def test_a_shown_value_is_within_half_a_percent(value: float, unit: str) -> None:
    number, shown = format_value(value, unit).split()
    prefix = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "m": 1e-3, "µ": 1e-6, "n": 1e-9}
    factor = prefix[shown[0]] if shown != unit else 1.0
    assert float(number) * factor == pytest.approx(value, rel=0.0051)


def test_bytes_are_never_shown_in_thousandths() -> None:
    assert format_value(0.2, "B") == "0.20 B"
