"""The check that a network learns, made before any training time is reported."""

import math
from typing import Any

from ergometer.core.engine import Engine
from ergometer.core.errors import ErgoError

_ROUND = 5
_ROUNDS = 6
_FALL = 0.001
_NEAR_ZERO = 0.1


class NotLearningError(ErgoError):
    """The network runs but does not learn."""


def _falls(losses: list[float]) -> bool:
    """Whether the losses go down, and not by chance: a Mann-Kendall trend test at about 1 in 100.

    A loss that is soon near zero has no trend any more: one that stays there has fallen too.
    """
    n = len(losses)
    if min(losses[1:]) >= losses[0] * (1 - _FALL):
        return False
    trend = sum(
        int(later > earlier) - int(later < earlier) for at, earlier in enumerate(losses) for later in losses[at + 1 :]
    )
    if n <= _ROUND:
        return trend == -n * (n - 1) // 2
    if max(losses[n // 2 :]) < _NEAR_ZERO * min(1.0, losses[0]):
        return True
    return trend < -3 * math.sqrt(n * (n - 1) * (2 * n + 5) / 18)


def check_learning(engine: Engine) -> dict[str, Any]:
    """Train on one fixed batch until the loss has fallen and every parameter has changed, or give up.

    Returns ok, reason and the losses. A few steps suffice for a network that learns; one with dropout may
    need more, so up to 30 are tried. Where a step has several passes, each must learn while the others rest.
    """
    losses: list[float] = []
    for number, part in enumerate(engine.passes):
        outcome = _check_pass(engine, number)
        losses += outcome["losses"]
        if not outcome["ok"]:
            reason = f"{part.name}: {outcome['reason']}" if part.name else outcome["reason"]
            return {"ok": False, "reason": reason, "losses": losses}
    return {"ok": True, "reason": "", "losses": losses}


def _check_pass(engine: Engine, number: int) -> dict[str, Any]:
    losses: list[float] = []
    stuck: dict[str, str] | None = None
    for _ in range(_ROUNDS):
        outcome = engine.learn(_ROUND, number)
        losses += outcome.losses
        if not all(math.isfinite(loss) for loss in losses):
            step = next(number for number, loss in enumerate(losses, 1) if not math.isfinite(loss))
            return {"ok": False, "reason": f"the loss is {losses[step - 1]} at step {step}", "losses": losses}
        stuck = {name: why for name, why in outcome.stuck.items() if stuck is None or name in stuck}
        if _falls(losses) and not stuck:
            return {"ok": True, "reason": "", "losses": losses}
    if stuck:
        name, why = next(iter(stuck.items()))
        others = f" and {len(stuck) - 1} more" if len(stuck) > 1 else ""
        reason = f"parameter {name}{others} did not change in {len(losses)} steps: {why}"
    else:
        reason = f"the loss did not fall in {len(losses)} steps on one batch: {losses[0]:.4g} to {losses[-1]:.4g}"
    return {"ok": False, "reason": reason, "losses": losses}
