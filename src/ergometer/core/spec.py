"""What one run does."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ergometer.core.errors import StoreError, UsageError

MODES = ("train", "infer", "exec", "measure")
MAX_BATCH = 1 << 20
MIN_PERIOD_S = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of a run; None is unlimited."""

    time_s: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """All that decides what one run does; equal specs are the same experiment."""

    model: str
    engine: str = "torch"
    device: str = "cpu"
    mode: str = "train"
    batch: int = 1
    threads: int | None = None
    cores: tuple[int, ...] | None = None
    input: tuple[int, ...] | None = None
    classes: int | None = None
    data: str = "synthetic"
    data_dir: str | None = None
    seed: int = 0
    steps: int | None = None
    warmup: int | None = None
    trace_steps: int = 5
    period_s: float = 0.01
    sensors: tuple[str, ...] | None = None
    budget: Budget = field(default_factory=Budget)
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode {self.mode!r} does not exist: choose from {', '.join(MODES)}.")
        if not 1 <= self.batch <= MAX_BATCH:
            raise UsageError(f"batch {self.batch} is out of range: choose 1 to {MAX_BATCH}.")
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise UsageError(f"threads {self.threads} is out of range: choose 1 to 1024.")
        if self.classes is not None and not 2 <= self.classes <= 10**6:
            raise UsageError(f"classes {self.classes} is out of range: choose 2 to 1000000.")
        if not MIN_PERIOD_S <= self.period_s <= 60:
            raise UsageError(f"sampling period {self.period_s} s is out of range: choose 1ms to 60s.")
        for name, value, lowest in (
            ("steps", self.steps, 1),
            ("warm-up steps", self.warmup, 0),
            ("trace steps", self.trace_steps, 0),
        ):
            if value is not None and not lowest <= value <= 10**7:
                raise UsageError(f"{name} {value} is out of range: choose {lowest} to 10000000.")
        if not 0 <= self.seed < 1 << 32:
            raise UsageError(f"seed {self.seed} is out of range: choose 0 to {(1 << 32) - 1}.")
        if not isinstance(self.model, str) or not self.model.strip():
            raise UsageError(f"a model or a name must be given, not {self.model!r}.")
        if self.budget.time_s is not None and not self.budget.time_s > 0:
            raise UsageError(f"time {self.budget.time_s} s is out of range: it must be more than 0.")

    @property
    def id(self) -> str:
        """A hash that equal specs share."""
        import hashlib  # megabytes that a measured process does not need

        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def engine_text(self) -> str:
        """The engine with its options, as on the command line."""
        chosen = ",".join(f"{name}={value}" for name, value in self.options.items() if name != "source")
        return f"{self.engine}:{chosen}" if chosen else self.engine

    @property
    def source(self) -> dict[str, str]:
        """Of the options, what says of a user's own network which one it is, and nothing of the engine."""
        return {name: value for name, value in self.options.items() if name == "source"}

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Spec":
        known = {item.name for item in fields(cls)}
        extra = set(data) - known
        if extra or "model" not in data:
            raise StoreError(f"this spec has fields that this version does not know: {', '.join(sorted(extra))}.")
        values = dict(data)
        for name in ("cores", "input", "sensors"):
            if values.get(name) is not None:
                values[name] = tuple(values[name])
        values["budget"] = Budget(**values.get("budget", {}))
        return cls(**values)
