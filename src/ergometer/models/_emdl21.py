"""What EMDL21's authors measured with MNN, on a Huawei Mate 30 unless another device is named."""

from collections.abc import Sequence

from ergometer.core.model import Published

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


def mate30(
    train_ms: Sequence[float],
    infer_ms: Sequence[float],
    memory_mb: Sequence[float],
    *,
    options: str = "",
    input: tuple[int, ...] | None = None,
) -> tuple[Published, ...]:
    """By batch size 1, 2, 4 and so on: a training step, an inference (as a session), and the peak of training."""
    return tuple(
        Published(
            paper="EMDL21",
            device="Huawei Mate 30",
            engine=engine,
            mode=mode,
            metric=metric,
            values={batch: value * scale for batch, value in zip(_BATCHES, values, strict=False)},
            options=options,
            input=input,
        )
        for engine, mode, metric, values, scale in (
            ("MNN", "train", "step_time", train_ms, 1e-3),
            ("MNN (session)", "infer", "step_time", infer_ms, 1e-3),
            ("MNN", "train", "peak_memory", memory_mb, 1e6),
        )
    )


def library(device: str, engine: str, train_ms: Sequence[float]) -> Published:
    """A training step by batch size 1, 2 and 4, as far as it had memory."""
    values = {batch: value * 1e-3 for batch, value in zip(_BATCHES, train_ms, strict=False)}
    return Published(paper="EMDL21", device=device, engine=engine, mode="train", metric="step_time", values=values)
