"""Batch normalization as tinygrad is told it, against torch in double precision."""

from typing import Any

import numpy as np
import pytest
import torch

from ergometer.core import registry
from ergometer.core.graph import Node
from ergometer.engines.tinygrad import _devices as devices
from ergometer.engines.tinygrad._products import Products
from ergometer.engines.tinygrad._rules import rules

pytestmark = pytest.mark.skipif(
    not registry.load("engines", "tinygrad")().probe("cpu").ok, reason="tinygrad does not work here"
)

EPSILON, MOMENTUM = 1e-5, 0.1


@pytest.mark.parametrize("shape", [(6, 5), (4, 5, 7), (3, 5, 4, 6), (2, 5, 3, 2, 4)])
def test_batch_norm_its_statistics_and_gradients(shape: tuple[int, ...]) -> None:
    devices.set_environment()
    from tinygrad import Tensor

    random = np.random.default_rng(0)
    gradient = random.standard_normal(shape).astype(np.float32)
    x = (3 + 2 * random.standard_normal(shape)).astype(np.float32)
    channels = [random.uniform(0.5, 2, 5).astype(np.float32) for _ in range(4)]

    doubles = [torch.tensor(array, dtype=torch.float64) for array in (x, *channels)]
    held = [double.requires_grad_() for double in doubles[:3]]
    mean, variance = doubles[3:]
    expected = torch.nn.functional.batch_norm(
        held[0], mean, variance, held[1], held[2], training=True, momentum=MOMENTUM, eps=EPSILON
    )
    expected.backward(torch.tensor(gradient, dtype=torch.float64))

    given = [Tensor(array, device="CPU") for array in (x, *channels)]
    attributes: dict[str, Any] = {"training": True, "momentum": MOMENTUM, "epsilon": EPSILON}
    node = Node(op="batch_norm", inputs=(), outputs=(), attributes=attributes, layer="")
    y, *statistics = rules(Products())["batch_norm"](node, *given)
    found = [y, *statistics, *y.gradient(*given[:3], gradient=Tensor(gradient, device="CPU"))]
    for value, wanted in zip(found, [expected, mean, variance, *(item.grad for item in held)], strict=True):
        np.testing.assert_allclose(value.numpy(), wanted.detach().numpy(), rtol=2e-4, atol=2e-5)
