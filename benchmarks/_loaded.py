"""A network of the suite on the torch engine, with a synthetic batch: what several benchmarks start from."""

from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.model import Model
from ergometer.core.spec import Spec
from ergometer.engines.torch.engine import Torch
from ergometer.run.resolve import of_suite


def load(name: str, batch: int, threads: int, shape: tuple[int, ...] | None = None) -> Torch:
    return load_model(of_suite(name, shape, None), batch, threads)


def load_model(model: Model, batch: int, threads: int) -> Torch:
    """With the model's own data set, so that a network that acts has a world to act in."""
    stream = registry.load("data", model.data).open(Request(fields=model.fields(), batch=batch, seed=0))
    engine = Torch()
    environment = stream if hasattr(stream, "play") else None
    engine.load(Spec(model=model.name, batch=batch, threads=threads), model, stream.batch(), environment)
    return engine
