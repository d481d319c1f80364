"""The kernel for convolutions and products, as it is for GPUs and as it is for CPUs, against double precision."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ergometer.core import registry
from ergometer.engines.tinygrad import _devices as devices
from ergometer.engines.tinygrad import _products as products
from ergometer.engines.tinygrad._products import Products

pytestmark = pytest.mark.skipif(
    not registry.load("engines", "tinygrad")().probe("opencl").ok, reason="tinygrad has no OpenCL here"
)

Operation = Callable[[Any, Any], Any]


@pytest.fixture(scope="module", autouse=True)
def opened() -> Iterator[None]:
    from tinygrad.helpers import DEV

    devices.set_environment()
    devices.find("opencl")
    before, DEV.value = DEV.value, "CL"
    yield
    DEV.value = before


# The engine's contract tests run the form for CPUs.
@pytest.fixture(
    params=["GPU", *(pytest.param(name, marks=pytest.mark.slow) for name in ("CPU", "small GPU", "Ampere"))]
)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = 64 if request.param == "small GPU" else 1024
    limits = devices.Limits(request.param == "CPU", threads, ampere=request.param == "Ampere")
    monkeypatch.setattr(products, "limits_of", lambda _: limits)


def assert_same(ours: Operation, true: Operation, shapes: Sequence[tuple[int, ...]], within: float = 2e-5) -> None:
    """The result and both gradients of random operands."""
    from tinygrad import Tensor

    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    operands = [Tensor(array, device="CL").realize() for array in arrays]
    doubles = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    result, expected = ours(*operands), true(*doubles)
    gradient = random.standard_normal(expected.shape).astype(np.float32)
    expected.backward(torch.tensor(gradient, dtype=torch.float64))
    found = [result, *result.gradient(*operands, gradient=Tensor(gradient, device="CL"))]
    for value, wanted in zip(found, [expected, *(double.grad for double in doubles)], strict=True):
        wanted = wanted.detach().numpy()
        assert value.shape == wanted.shape
        assert np.abs(value.numpy() - wanted).max() <= within * np.abs(wanted).max()


windows = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "channels": st.sampled_from([1, 3, 40, 64]),
        "outputs": st.sampled_from([1, 5, 64, 130]),
        "size": st.tuples(st.integers(5, 11), st.integers(5, 11)),
        "window": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
        "padding": st.tuples(*4 * [st.integers(0, 2)]),
    }
)


def window(channels: int, outputs: int) -> dict[str, Any]:
    """3 x 3: with so many channels that tiles end where a tap does, or not."""
    steps = {"stride": (1, 1), "dilation": (1, 1), "padding": (1, 1, 1, 1)}
    return {"batch": 2, "channels": channels, "outputs": outputs, "size": (7, 6), "window": (3, 3)} | steps


@pytest.mark.usefixtures("kernel")
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(window(64, 64))
@example(window(48, 24))
@given(windows)
def test_a_convolution_and_its_gradients(w: dict[str, Any]) -> None:
    assert_convolution(Products(), w)


@pytest.mark.parametrize("w", [window(64, 64), window(48, 24), window(3, 130), window(130, 40)])
def test_a_convolution_in_tf32(w: dict[str, Any]) -> None:
    skip_without_tf32()
    assert_convolution(Products(tf32=True), w, within=2e-3)


def skip_without_tf32() -> None:
    if not devices.limits_of("CL").ampere:
        pytest.skip("no NVIDIA GPU since Ampere through OpenCL")


def assert_convolution(products: Products, w: dict[str, Any], within: float = 2e-5) -> None:
    top, left, bottom, right = w["padding"]
    shapes = [(w["batch"], w["channels"], *w["size"]), (w["outputs"], w["channels"], *w["window"])]
    assert_same(
        lambda x, weight: products.conv(x, weight, w["stride"], w["dilation"], w["padding"]),
        lambda x, weight: torch.nn.functional.conv2d(
            torch.nn.functional.pad(x, (left, right, top, bottom)), weight, None, w["stride"], 0, w["dilation"]
        ),
        shapes,
        within,
    )


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("rows", "ins", "outs"), [(1, 1, 1), (130, 3000, 33)])
def test_a_linear_layer_and_its_gradients(rows: int, ins: int, outs: int) -> None:
    assert_same(Products().linear, torch.nn.functional.linear, [(rows, ins), (outs, ins)])


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize(("batch", "depth"), [((), 70), ((2, 3), 1200)])
def test_products_of_as_many_matrices(batch: tuple[int, ...], depth: int) -> None:
    assert_same(Products().matmul, torch.matmul, [(*batch, 33, depth), (*batch, depth, 50)])


def test_matrices_in_tf32() -> None:
    skip_without_tf32()
    products = Products(tf32=True)
    assert_same(products.linear, torch.nn.functional.linear, [(130, 3000), (33, 3000)], 2e-3)
    assert_same(products.matmul, torch.matmul, [(2, 3, 33, 1200), (2, 3, 1200, 50)], 2e-3)
