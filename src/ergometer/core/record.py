"""What one run found: Metrics, the host they were found on, and how the run ended."""

from dataclasses import asdict, dataclass, field
from typing import Any

from ergometer.core.errors import StoreError
from ergometer.core.spec import Spec

# Format 1 (2026-11): the first.
FORMAT = 1

# running: in progress; interrupted: stopped by the user, or its parent vanished.
STATUSES = ("running", "ok", "out_of_memory", "over_budget", "not_learning", "unsupported", "failed", "interrupted")
SOURCES = ("timed", "counter", "integrated", "estimated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A value with its unit, spread, count and origin.

    low and high are the 95 % confidence interval of a timed value, and the lowest and highest sample
    of a sampled one; None where neither exists. note says what the value was made of.
    """

    value: float
    unit: str
    n: int = 1
    low: float | None = None
    high: float | None = None
    source: str = "timed"
    note: str = ""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source {self.source!r} is none of {SOURCES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of one run; a failure is a Record too."""

    id: str
    spec: Spec
    status: str
    started_at: str
    reason: str = ""
    host: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Metric] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    directory: str = ""

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {STATUSES}")

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "spec_id": self.spec.id, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Record":
        try:
            if data["format"] > FORMAT:
                raise StoreError(
                    f"record {data.get('id')} has format {data['format']}, newer than this version reads ({FORMAT}): "
                    "upgrade ergometer."
                )
            values = {key: value for key, value in data.items() if key not in ("format", "spec_id")}
            values["spec"] = Spec.from_json(values["spec"])
            values["metrics"] = {name: Metric(**metric) for name, metric in values["metrics"].items()}
            values["warnings"] = tuple(values["warnings"])
            return cls(**values)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise StoreError(f"this is not a record of ergometer: {error!r}.") from error
