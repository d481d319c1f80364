"""Comparing an engine with double precision: what is wrong is found, and rounding is not."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ergometer.analyze.proof import Difference, Proof, differences, sketch, worst_by_step, wrong_in
from ergometer.core.engine import LEARNING_RATE, MOMENTUM
from ergometer.core.graph import RESULT, VELOCITY, Graph
from ergometer.core.spec import Spec
from ergometer.engines.torch import reference
from ergometer.engines.torch.capture import capture
from ergometer.engines.torch.engine import Torch, cross_entropy
from ergometer.run.prove import bounds_of

STEPS = 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.SiLU(), nn.Conv2d(6, 5, 3), nn.BatchNorm2d(5), nn.Flatten(),
        nn.Linear(80, 4),
    )  # fmt: skip


X = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
Y = np.array([0, 1, 2, 3])
GRAPH, ARRAYS = capture(network(), [torch.from_numpy(X), torch.from_numpy(Y)], ["x", "y"], loss=cross_entropy)


def trained(rate: float = LEARNING_RATE) -> list[dict[str, Any]]:
    return reference.train(GRAPH, ARRAYS, {"x": X, "y": Y}, [{}] * STEPS, rate=rate, momentum=MOMENTUM)


TRUE = trained()


def in_single(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: np.asarray(array, dtype=np.float32) for name, array in step.items()} for step in steps]


def proof(found: list[dict[str, Any]], bound: float = 1e-3) -> Proof:
    listed = [
        {"step": item.step, "kind": item.kind, "name": item.name, "error": item.error}
        for item in differences(ARRAYS, found, TRUE)
    ]
    kinds = ("result", "gradient", "update", "buffer", "all gradients", "all updates")
    variants = {"smooth": {"bounds": dict.fromkeys(kinds, bound), "steps": STEPS, "differences": listed}}
    return Proof(engine="e", versions={}, model="m", mode="train", variants=variants, made_at="")


def test_rounding_to_single_precision_is_right() -> None:
    found = proof(in_single(TRUE))
    assert not found.wrong and not found.reason
    assert {item.kind for item in found.listed("smooth")} == set(found.variants["smooth"]["bounds"])
    assert {item.step for item in found.listed("smooth")} == {1, 2, 3}


def detached_statistics(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Batch-norm whose gradient does not flow through the batch's mean and variance."""
    rule = reference._RULES["batch_norm"]

    def detached(node: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        _, new_mean, new_variance = rule(node, x, scale, bias, mean, variance)
        flat = x.detach().transpose(0, 1).flatten(1)
        centre, spread = (item.view(1, -1, 1, 1) for item in (flat.mean(1), flat.var(1, correction=0)))
        normed = (x - centre) / (spread + node.attributes["epsilon"]).sqrt()
        return normed * scale.view(1, -1, 1, 1) + bias.view(1, -1, 1, 1), new_mean, new_variance

    monkeypatch.setitem(reference._RULES, "batch_norm", detached)
    return trained()


def zero_convolution_gradient(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    rule = reference._RULES["conv"]
    monkeypatch.setitem(reference._RULES, "conv", lambda node, x, weight, *bias: rule(node, x, weight.detach(), *bias))
    return trained()


def dropped_gradient(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A reshape through which no gradient comes back."""
    rule = reference._RULES["reshape"]
    monkeypatch.setitem(reference._RULES, "reshape", lambda node, x: rule(node, x).detach())
    return trained()


def statistics_not_updated(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return [step | {name: ARRAYS[name] for name in GRAPH.updates} for step in trained()]


def no_momentum(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return reference.train(GRAPH, ARRAYS, {"x": X, "y": Y}, [{}] * STEPS, rate=LEARNING_RATE, momentum=0.0)


def other_rate(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return trained(rate=2 * LEARNING_RATE)


def update_not_applied(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return [step | {"3.weight": ARRAYS["3.weight"]} for step in trained()]


def tensor_missing(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return [{name: array for name, array in step.items() if name != "6.bias"} for step in trained()]


def not_a_number(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return [step | {RESULT: np.float32("nan")} for step in trained()]


@pytest.mark.parametrize(
    ("broken", "kind", "name"),
    [
        (detached_statistics, "gradient", "0.weight"),
        (zero_convolution_gradient, "gradient", "3.weight"),
        (dropped_gradient, "gradient", "0.weight"),
        (statistics_not_updated, "buffer", "1.running_var"),
        (no_momentum, "gradient", "6.weight"),
        (other_rate, "update", "6.weight"),
        (update_not_applied, "update", "3.weight"),
        (tensor_missing, "missing", "6.bias"),
        (not_a_number, "unusable", RESULT),
    ],
)
def test_a_broken_engine_is_caught(broken: Any, kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = broken(monkeypatch)
    seen = proof(in_single(found), bound=0.1)
    assert (kind, name) in {(item.kind, item.name) for _, item in seen.wrong}
    assert "computes m wrongly" in seen.reason
    # On a device without torch only sums of every tensor are known; they show the same faults.
    start = sketch({key: ARRAYS[key] for key in (*GRAPH.parameters, *GRAPH.updates)})
    listed = differences(start, [sketch(step) for step in found], [sketch(step) for step in TRUE])
    assert any((item.kind, item.name) == (kind, name) and not item.error <= 0.1 for item in listed)


def test_a_gradient_that_is_truly_zero_is_compared_with_the_others() -> None:
    """A bias before a batch-norm: its gradient is rounding, whose relative error means nothing."""
    assert all(np.abs(TRUE[0][VELOCITY + name]).max() < 1e-12 for name in ("0.bias", "3.bias"))
    noisy = [dict(step) for step in TRUE]
    noisy[0][VELOCITY + "0.bias"] = TRUE[0][VELOCITY + "0.bias"] + 1e-9
    assert not proof(noisy).wrong
    noisy[0][VELOCITY + "0.bias"] = TRUE[0][VELOCITY + "0.bias"] + 1e-1
    assert "0.bias" in [item.name for _, item in proof(noisy).wrong]


@given(st.floats(1e-6, 0.5), st.integers(0, 10_000))
def test_a_sketch_keeps_relative_errors(error: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    true, noise = random.standard_normal(500), random.standard_normal(500)
    wrong = true + error * np.linalg.norm(true) * noise / np.linalg.norm(noise)
    start = {"w": np.zeros(500)}
    (item,) = differences(sketch(start), [sketch({"w": wrong})], [sketch({"w": true})])
    assert error / 4 < item.error + 1e-6 < error * 4


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20))
def test_equal_states_have_no_difference(values: list[float]) -> None:
    state = {"w": np.array(values), VELOCITY + "w": np.array(values), RESULT: np.array(1.0)}
    assert all(item.error == 0 for item in differences({"w": np.zeros(len(values))}, [state], [state]))


def test_the_graph_of_this_test_is_what_it_says() -> None:
    assert isinstance(GRAPH, Graph) and len(GRAPH.updates) == 4


def test_where_torch_in_single_precision_fails_too_an_engine_may_be_a_few_times_as_far_off() -> None:
    listed = [
        asdict(Difference(step=step, kind="gradient", name="w", error=error)) for step, error in ((1, 1e-3), (2, 0.1))
    ]
    variant = {"differences": listed, "bounds": {"gradient": 0.02}, "steps": 3}
    assert [item.step for item in wrong_in(variant)] == [2]
    assert not wrong_in(variant | {"single": worst_by_step([listed[0], listed[1] | {"error": 0.03}])})
    assert [item.step for item in wrong_in(variant | {"single": {"gradient 1": 1e-4, "gradient 2": 0.01}})] == [2]


@pytest.mark.parametrize("compared", ["smooth", "actual"])
def test_fewer_bits_may_be_further_off(compared: str) -> None:
    engine = Torch()
    single, tf32, bf16 = (
        bounds_of(Spec(model="lenet", options=options), engine)[compared]
        for options in ({}, {"precision": "tf32"}, {"precision": "bf16"})
    )
    assert all(single[kind] < tf32[kind] < bf16[kind] < 1 for kind in single)
