from collections.abc import Iterator

import numpy as np
import pytest

from ergometer.core.engine import Learning
from ergometer.core.model import Pass
from ergometer.run.learning import check_learning


class FakeEngine:
    """Plays back losses, and parameters that stay stuck for so many rounds."""

    passes = (Pass(name="", loss=lambda *_: None),)

    def __init__(self, losses: Iterator[float], stuck: dict[str, str] | None = None, rounds: int = 99):
        self.losses, self.stuck, self.rounds = losses, stuck or {}, rounds

    def learn(self, steps: int, number: int) -> Learning:
        self.rounds -= 1
        return Learning(
            losses=tuple(next(self.losses) for _ in range(steps)), stuck=self.stuck if self.rounds >= 0 else {}
        )


def check(losses: list[float], **options: object) -> dict[str, object]:
    return check_learning(FakeEngine(iter(losses + [losses[-1]] * 40), **options))  # type: ignore[arg-type]


def test_a_falling_loss_passes() -> None:
    assert check([2.3, 2.2, 2.1, 2.0, 1.9])["ok"]


def test_a_loss_that_first_rises_may_still_pass() -> None:
    assert check([2.3, 2.5, 2.6] + [2.4 - 0.1 * n for n in range(20)])["ok"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_fails(value: float) -> None:
    outcome = check([2.3, value])
    assert not outcome["ok"] and "step 2" in str(outcome["reason"])


def test_noise_is_not_learning() -> None:
    random = np.random.default_rng(0)
    passed = sum(bool(check(list(2.3 + 0.5 * random.standard_normal(40)))["ok"]) for _ in range(300))
    assert passed < 12


def test_a_noisy_loss_that_falls_passes() -> None:
    random = np.random.default_rng(0)
    falling = [2.3 - 0.05 * n + 0.1 * float(random.standard_normal()) for n in range(40)]
    assert check(falling)["ok"]


def test_a_constant_loss_fails() -> None:
    outcome = check([2.3026])
    assert not outcome["ok"] and "did not fall" in str(outcome["reason"])


def test_a_parameter_that_never_changes_fails_although_the_loss_falls() -> None:
    outcome = check([2.3, 2.0, 1.5, 1.0, 0.5], stuck={"conv2.weight": "its gradient is zero or absent"})
    assert not outcome["ok"]
    assert "conv2.weight" in str(outcome["reason"]) and "zero" in str(outcome["reason"])


def test_a_parameter_that_changes_late_passes() -> None:
    assert check([2.3 - 0.01 * n for n in range(30)], stuck={"fc.bias": "x"}, rounds=2)["ok"]


def test_every_pass_must_learn() -> None:
    class Two(FakeEngine):
        passes = (Pass(name="judge", loss=lambda *_: None), Pass(name="maker", loss=lambda *_: None))

    outcome = check_learning(Two(iter([5.0, 4.0, 3.0, 2.0, 1.0, *[1.0] * 40])))  # type: ignore[arg-type]
    assert not outcome["ok"]
    assert outcome["reason"].startswith("maker: the loss did not fall")


def test_a_loss_that_is_at_once_near_zero_passes() -> None:
    assert check([4.8, 0.0, 0.0, 1e-4, 0.0, 1e-5, 0.0, 2e-4, 0.0, 1e-4])["ok"]
    assert not check([50.0, *[2.3026] * 29])["ok"]  # collapsed to chance
    assert not check([4.8, 4.0, 4.9, 4.1, 4.8, 4.0, 4.9, 4.1, 4.8, 4.0] * 4)["ok"]
