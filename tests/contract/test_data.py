import numpy as np
import pytest

from ergometer.core import registry

DATASETS = registry.load_all("data")


@pytest.mark.parametrize("name", DATASETS)
def test_batches_have_the_right_shape_and_follow_the_seed(name: str) -> None:
    dataset = DATASETS[name]
    assert dataset.name == name and dataset.title
    inputs, labels = dataset.batch((3, 8, 8), 10, 32, 5)
    assert inputs.shape == (32, 3, 8, 8) and inputs.dtype == np.float32
    assert labels.shape == (32,) and labels.dtype == np.int64
    assert labels.min() >= 0 and labels.max() < 10
    again, _ = dataset.batch((3, 8, 8), 10, 32, 5)
    other, _ = dataset.batch((3, 8, 8), 10, 32, 6)
    np.testing.assert_array_equal(inputs, again)
    assert not np.array_equal(inputs, other)
