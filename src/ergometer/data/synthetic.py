"""Random data of the right shape: the default for timing."""

from typing import Any

from numpy.typing import NDArray

from ergometer.core.dataset import Dataset, Request
from ergometer.core.model import Field
from ergometer.core.random import Random


class Synthetic:
    """One batch, the same for the same seed: standard normal float32, or uniform whole numbers (int64)."""

    fixed = True

    def __init__(self, request: Request):
        random = Random(request.seed)

        def draw(field: Field) -> NDArray[Any]:
            shape = (request.batch, *field.shape)
            if field.high is None:
                return random.normal(shape)
            return random.integers(field.high, shape)

        self._batch = tuple(draw(field) for field in request.fields)

    def batch(self) -> tuple[NDArray[Any], ...]:
        return self._batch


DATASET = Dataset(
    name="synthetic",
    title="random data of the model's shapes",
    tasks=(
        "image classification",
        "image generation",
        "character prediction",
        "question answering",
        "translation",
        "control",
    ),
    open=Synthetic,
)
