"""Random data of the right shape: the default for timing."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Dataset


def batch(shape: tuple[int, ...], classes: int, size: int, seed: int) -> Sequence[NDArray[np.generic]]:
    """Standard normal inputs (float32) and uniform labels (int64), the same for the same seed."""
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((size, *shape), dtype=np.float32)
    return inputs, random.integers(0, classes, size=size, dtype=np.int64)


DATASET = Dataset(name="synthetic", title="random data of the model's input shape", batch=batch)
