"""Sizes, shapes and numbers with units: reading them from a user, writing them for one."""

import re

from ergometer.core.errors import UsageError

_BYTES = {"": 1, "B": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30}
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
_SCALED = {"s", "J", "W", "B", "Hz", "MAC", "FLOP/s", "params"}


def parse_bytes(text: str) -> int:
    """Bytes from '500MB', '1GB', '256MiB' or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]I?)?B?", text.strip().upper())
    if not match or float(match[1]) <= 0:
        raise UsageError(f"{text!r} is not a size: write it like 500MB, 1GB or 256MiB.")
    return int(float(match[1]) * _BYTES[match[2] or ""])


def parse_seconds(text: str) -> float:
    """Seconds from '10ms', '1.5s', '2min' or a plain number of seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min)?", text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a duration: write it like 10ms, 20s or 2min.")
    return float(match[1]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, None: 1.0}[match[2]]


def parse_percent(text: str) -> float:
    """0.05 from '5%'."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text.strip())
    if not match:
        raise UsageError(f"{text!r} is not a share: write it like 5% or 2.5%.")
    return float(match[1]) / 100


def parse_shape(text: str) -> tuple[int, ...]:
    """(3, 224, 224) from '3x224x224'."""
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{text!r} is not an input shape: write it like 3x224x224 (channels x height x width).")
    return tuple(int(part) for part in parts)


def format_shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(size) for size in shape)


def format_value(value: float, unit: str) -> str:
    """Three significant digits with an SI prefix where the unit takes one: 0.0123 s -> '12.3 ms'."""
    if unit not in _SCALED or value == 0:
        return f"{_digits(value)} {unit}".strip()
    factor, prefix = next((item for item in _PREFIXES if abs(value) >= item[0] * 0.9995), _PREFIXES[-1])
    if unit in ("B", "params", "MAC") and factor < 1:
        factor, prefix = 1.0, ""
    shown_unit = "" if unit == "params" else unit
    return f"{_digits(value / factor)} {prefix}{shown_unit}".strip()


def _digits(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    magnitude = abs(float(f"{value:.3g}"))
    if 0 < magnitude < 0.001:
        return f"{value:.1e}"
    if abs(value) >= 1000 or magnitude == 0 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.{0 if magnitude >= 100 else 1 if magnitude >= 10 else 2}f}"
