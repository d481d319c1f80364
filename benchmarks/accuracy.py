"""That networks really learn from real data: test accuracy, or loss, after a short training.

python benchmarks/accuracy.py FOLDER [NAME ...]

FOLDER holds mnist/, cifar10/ and shakespeare/ as docs/data.md lays them out.
"""

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from ergometer.core import registry
from ergometer.core.dataset import Request
from ergometer.core.spec import Spec
from ergometer.engines.torch.engine import Torch
from ergometer.run.resolve import of_suite


@dataclass
class Trial:
    """bound: what to reach, as accuracy (at least), or as loss in nats (at most)."""

    model: str
    data: str
    batch: int
    steps: int
    rate: float
    tested: int
    bound: str


TRIALS = (
    Trial("lenet", "mnist", 64, 1800, 0.02, 10_000, "at least 98 %"),
    Trial("mobilenet_reduced", "cifar10", 32, 400, 0.02, 2_000, "far above 10 %, which is chance"),
    Trial("densenet40_12", "cifar10", 32, 300, 0.05, 1_000, "far above 10 %, which is chance"),
    Trial("char_cnn", "shakespeare", 16, 1000, 0.2, 1_000, "loss below 2.0 nats"),
)


def open_stream(trial: Trial, folder: Path, fields, split: str):
    dataset = registry.load("data", trial.data)
    request = Request(fields=fields, batch=trial.batch, seed=0, folder=folder / trial.data, split=split)
    return dataset.open(request)


def test(engine: Torch, stream, count: int) -> tuple[float, float]:
    """(accuracy, loss) on the test split."""
    right = seen = 0
    losses = []
    engine.module.eval()
    with torch.inference_mode():
        while seen < min(count, stream.length - stream.length % engine.batch[-1].shape[0]):
            *inputs, labels = (torch.from_numpy(array) for array in stream.batch())
            scores = engine.module(*inputs)
            scores = scores.reshape(labels.numel(), -1)
            right += int((scores.argmax(1) == labels.flatten()).sum())
            losses.append(float(functional.cross_entropy(scores, labels.flatten())))
            seen += len(labels)
    engine.module.train()
    return right / (len(losses) * labels.numel()), sum(losses) / len(losses)


def run(trial: Trial, folder: Path) -> None:
    dataset = registry.load("data", trial.data)
    model = of_suite(trial.model, None, dataset.classes or None)
    train = open_stream(trial, folder, model.fields(), "train")
    engine = Torch()
    engine.load(Spec(model=trial.model, batch=trial.batch), model, train.batch())
    group = engine.optimizers[0].param_groups[0]
    before = test(engine, open_stream(trial, folder, model.fields(), "test"), trial.batch)
    loading, start = 0.0, time.monotonic()
    for number in range(trial.steps):
        group["lr"] = trial.rate * (1 + math.cos(math.pi * number / trial.steps)) / 2
        began = time.monotonic()
        engine.feed(train.batch())
        loading += time.monotonic() - began
        engine.step()
    spent = time.monotonic() - start
    accuracy, loss = test(engine, open_stream(trial, folder, model.fields(), "test"), trial.tested)
    print(
        f"accuracy.{trial.model}: {trial.data}, {trial.steps} steps of {trial.batch}: "
        f"test accuracy {100 * accuracy:.2f} % "
        f"(before {100 * before[0]:.2f} %), loss {loss:.3f} nats (before {before[1]:.3f}); {trial.bound}; "
        f"{spent:.0f} s, of which {100 * loading / spent:.1f} % loading",
        flush=True,
    )


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wanted = sys.argv[2:]
    for trial in TRIALS:
        if not wanted or trial.model.split(":")[0] in wanted:
            run(trial, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
