"""Whether an engine's training step is right: its states after each step against a reference in double precision."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ergometer.core.graph import RESULT, VELOCITY
from ergometer.core.random import Random
from ergometer.core.record import Metric

_ZERO = 1e-6  # what is this small beside the largest of its kind is zero: compared with that, not with itself
_SUMS = 32
_SLACK = 5.0  # how much worse than torch in single precision an engine may be
_UNJUDGED = 1e300  # what is missing or unusable is still beyond it
_ROUNDING = 3 * float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One tensor after one step, or all of a kind as one vector.

    kind: result (the loss or the scores), gradient, update, buffer, all gradients, all updates; missing or unusable.
    error: relative; 1 for what did not move at all.
    """

    step: int
    kind: str
    name: str
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """variants: by name (smooth, actual, bundle or inference), the differences, and by their kind the bounds.

    steps: how many of them are judged. Where ReLU flips, errors double with every step.
    single: by kind and step, the worst error of torch in single precision, where the engine's is beyond the bounds:
    very deep networks make so much of rounding that no engine could keep them.
    """

    engine: str
    versions: dict[str, str]
    model: str
    mode: str
    variants: dict[str, dict[str, Any]]
    made_at: str

    @property
    def wrong(self) -> list[tuple[str, Difference]]:
        """What is beyond its bound, the worst first."""
        found = [(name, item) for name, variant in self.variants.items() for item in wrong_in(variant)]
        return sorted(found, key=lambda pair: -pair[1].error)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def listed(self, variant: str) -> list[Difference]:
        return [Difference(**item) for item in self.variants[variant]["differences"]]

    def overall(self, variant: str) -> float:
        """The error of all gradients as one vector in the first step, or of the scores."""
        kinds = ("all gradients", "result")
        return next(i.error for kind in kinds for i in self.listed(variant) if (i.kind, i.step) == (kind, 1))

    def worst(self, variant: str, kind: str) -> Difference | None:
        steps = self.variants[variant]["steps"]
        found = [item for item in self.listed(variant) if item.kind == kind and item.step <= steps]
        return max(found, key=lambda item: item.error, default=None)

    @property
    def metrics(self) -> dict[str, Metric]:
        """What a run on this engine says of its precision."""
        compared, variant = next(iter(self.variants.items()))
        note = f"relative, against double precision ({compared}; ergo verify)"
        name = "gradient_error" if self.mode == "train" else "score_error"
        found = {name: Metric(value=self.overall(compared), unit="ratio", source="counter", note=note)}
        if "same_top" in variant:
            note = "samples whose highest score is that of double precision; random weights and inputs"
            found["same_top_class"] = Metric(value=100 * variant["same_top"], unit="%", source="counter", note=note)
        return found

    @property
    def reason(self) -> str:
        """One sentence on what is wrong; empty if nothing is."""
        wrong = self.wrong
        if not wrong:
            return ""
        name, item = wrong[0]
        bound = _bound(self.variants[name], item.kind, item.step)
        many = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return (
            f"{self.engine} computes {self.model} wrongly: the {item.kind} of {item.name.strip('/')} in step "
            f"{item.step} is off by {item.error:.1e} (bound {bound:.0e}){many}: `ergo verify {self.model} --engine "
            f"{self.engine}` shows all, and another engine may do it right"
        )


def wrong_in(variant: dict[str, Any]) -> list[Difference]:
    """The differences of a comparison that are beyond their bound."""
    listed = [Difference(**item) for item in variant["differences"] if item["step"] <= variant["steps"]]
    return [item for item in listed if not item.error <= _bound(variant, item.kind, item.step)]


def _bound(variant: dict[str, Any], kind: str, step: int) -> float:
    if kind not in variant["bounds"]:
        return _UNJUDGED
    return float(max(variant["bounds"][kind], _SLACK * variant.get("single", {}).get(f"{kind} {step}", 0.0)))


def worst_by_step(listed: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The largest error of each kind in each step."""
    found: dict[str, float] = {}
    for item in listed:
        key = f"{item['kind']} {item['step']}"
        found[key] = max(found.get(key, 0.0), item["error"])
    return found


def differences(
    start: Mapping[str, Any], found: Sequence[dict[str, Any]], true: Sequence[dict[str, Any]]
) -> list[Difference]:
    """Every tensor of the reference after every step, and all of a kind as one vector. start: what both began with."""
    listed = []
    for number, (mine, reference) in enumerate(zip(found, true, strict=True), 1):
        kinds: dict[str, list[_Change]] = {}
        for name, expected in reference.items():
            got, expected = _flat(mine.get(name, ())), _flat(expected)
            if got.shape != expected.shape or not np.isfinite(got).all():
                kind = "unusable" if name in mine else "missing"
                listed.append(Difference(step=number, kind=kind, name=name, error=float("inf")))
            elif name == RESULT:
                kinds.setdefault("result", []).append(_Change(name, got, expected, 0.0))
            elif name.startswith(VELOCITY):
                kinds.setdefault("gradient", []).append(_Change(name.removeprefix(VELOCITY), got, expected, 0.0))
            else:
                kind = "update" if VELOCITY + name in reference else "buffer"
                before, rounding = _flat(start[name]), _ROUNDING * _norm(expected)
                kinds.setdefault(kind, []).append(_Change(name, got - before, expected - before, rounding))
        for kind, changes in kinds.items():
            listed += _errors(number, kind, changes)
    return listed


@dataclass(frozen=True, slots=True)
class _Change:
    """rounding: how large a difference single precision explains."""

    name: str
    got: Any
    expected: Any
    rounding: float

    @property
    def apart(self) -> float:
        return max(_norm(self.got - self.expected) - self.rounding, 0.0)


def _errors(step: int, kind: str, changes: list[_Change]) -> list[Difference]:
    largest = max(_norm(change.expected) / np.sqrt(change.expected.size) for change in changes)
    listed = []
    for change in changes:
        size = _norm(change.expected)
        least = largest * np.sqrt(change.expected.size)
        scale = size if size > _ZERO * least else least
        listed.append(Difference(step=step, kind=kind, name=change.name, error=float(change.apart / (scale or 1.0))))
    if kind in ("gradient", "update"):
        apart = np.sqrt(sum(change.apart**2 for change in changes))
        whole = np.sqrt(sum(_norm(change.expected) ** 2 for change in changes))
        listed.append(Difference(step=step, kind=f"all {kind}s", name="network", error=float(apart / (whole or 1.0))))
    return listed


def same_top(found: Any, true: Any) -> float:
    """The share of samples whose highest score is in the same place."""
    return float(np.mean(np.argmax(found, -1) == np.argmax(true, -1)))


def sketch(state: dict[str, Any]) -> dict[str, Any]:
    """Every array as a few random sums of its values: their relative errors are those of the arrays, roughly."""
    return {name: _sums(np.asarray(array, dtype=np.float64).ravel()) for name, array in state.items()}


def _sums(values: Any) -> Any:
    if values.size <= _SUMS:
        return values
    random = Random(0)
    signs = (random.coins(values.size) for _ in range(_SUMS))
    whole = values.sum()
    return np.array([2 * float(values @ sign) - whole for sign in signs]) / np.sqrt(_SUMS)


def _flat(array: Any) -> Any:
    return np.asarray(array, dtype=np.float64).ravel()


def _norm(array: Any) -> float:
    return float(np.linalg.norm(array))
