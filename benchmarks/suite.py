"""What the suite adds to a step: each network's step against the same network in a plain torch loop.

python benchmarks/suite.py [MODEL ...]

Both step the same module with the same optimizers in turn, one step each, so that nothing but the code
around them differs; on one thread, because threads that wait for each other would hide it.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from _loaded import load_model
from ergometer.analyze.statistics import median_interval
from ergometer.core import registry
from ergometer.core.model import Model
from ergometer.engines.torch.engine import Torch
from ergometer.run.resolve import of_suite

FEWEST, MOST = 40, 2000  # pairs of steps
LONGEST_S = 8.0
BATCH = 4


def size_of(model: Model) -> tuple[int, ...]:
    """Small, so that what is added would show."""
    if len(model.input) == 1:
        return (32,)
    side = 32 if model.refuse else max(32, model.smallest)
    return (model.input[0], side, side)


def supervised(engine: Torch) -> Callable[[], None]:
    module, optimizer = engine.module, engine.optimizers[0]
    *inputs, labels = engine.batch
    flat = labels.flatten()

    def step() -> None:
        scores = module(*inputs)
        loss = functional.cross_entropy(scores.reshape(flat.shape[0], -1), flat)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def adversarial(engine: Torch) -> Callable[[], None]:
    generator, discriminator = engine.module.generator, engine.module.discriminator
    judge, make = engine.optimizers
    image, noise = engine.batch
    judges, makers = list(discriminator.parameters()), list(generator.parameters())
    bce = functional.binary_cross_entropy_with_logits
    real, fake = torch.ones(len(image), 1), torch.zeros(len(image), 1)

    def step() -> None:
        with torch.no_grad():
            made = generator(noise[:, :, None, None])
        loss = bce(discriminator(image), real) + bce(discriminator(made), fake)
        loss.backward(inputs=judges)
        judge.step()
        judge.zero_grad()
        loss = bce(discriminator(generator(noise[:, :, None, None])), real)
        loss.backward(inputs=makers)
        make.step()
        make.zero_grad()

    return step


def acting(engine: Torch) -> Callable[[], None]:
    module, target, optimizer, world = engine.module, engine.companion, engine.optimizers[0], engine.environment

    def policy(states: Any) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(states)).numpy()

    def step() -> None:
        world.play(policy)
        state, action, reward, after, done = (torch.from_numpy(array) for array in world.batch())
        with torch.no_grad():
            wanted = reward + 0.99 * (1 - done) * target(after).max(1).values
        loss = functional.smooth_l1_loss(module(state).gather(1, action[:, None])[:, 0], wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def distilled(engine: Torch) -> Callable[[], None]:
    module, mentor, optimizer = engine.module, engine.companion, engine.optimizers[0]
    image, label = engine.batch

    def step() -> None:
        scores = module(image)
        with torch.no_grad():
            taught = functional.log_softmax(mentor(image) / 4, -1)
        soft = functional.kl_div(functional.log_softmax(scores / 4, -1), taught, reduction="batchmean", log_target=True)
        loss = (functional.cross_entropy(scores, label) + 16 * soft) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


BY_HAND = {"dcgan": adversarial, "dqn": acting, "mentee_distilled": distilled}


def seconds_of(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def compare(name: str) -> bool:
    named = "bert:size=small" if name == "bert" else name
    engine = load_model(of_suite(named, size_of(of_suite(named, None, None)), None), BATCH, threads=1)
    plain = BY_HAND.get(name, supervised)(engine)
    for _ in range(3):
        engine.step()
        plain()
    ratios, end = [], time.perf_counter() + LONGEST_S
    while len(ratios) < FEWEST or (len(ratios) < MOST and time.perf_counter() < end):
        order = (engine.step, plain) if len(ratios) % 2 else (plain, engine.step)
        took = {step: seconds_of(step) for step in order}
        ratios.append(took[engine.step] / took[plain])
    middle, low, high = median_interval(ratios)
    print(
        f"suite.{name}: step over the same in a plain loop {middle:.4f}, 95 % interval {low:.4f} .. {high:.4f} "
        f"(within 2 %), {1e3 * took[plain]:.1f} ms, {len(ratios)} pairs",
        flush=True,
    )
    return middle <= 1.02


def main() -> None:
    names = sys.argv[1:] or registry.names("models")
    beyond = [name for name in names if not compare(name)]
    print(
        f"suite: {len(names) - len(beyond)} of {len(names)} networks within 2 %; beyond: {', '.join(beyond) or 'none'}"
    )


if __name__ == "__main__":
    main()
