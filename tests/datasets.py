"""The files of every data set, made small, and what its contract is tried with."""

import gzip
import io
import json
import re
import struct
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ergometer.core import registry
from ergometer.core.dataset import Dataset, Request
from ergometer.core.errors import ErgoError
from ergometer.core.model import Field

DATASETS: dict[str, Dataset] = registry.load_all("data")
TASKS = {
    "image classification",
    "image generation",
    "character prediction",
    "question answering",
    "translation",
    "control",
}
BATCH = 4
CONTEXT = "The red dog sat on the old mat . A cat that was not old saw the dog and ran to the far hill ."


def write_idx(path: Path, values: Any) -> None:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    with gzip.open(path, "wb") if path.suffix == ".gz" else open(path, "wb") as file:
        file.write(header + values.tobytes())


def digits(count: int, side: int = 28) -> tuple[Any, Any]:
    """Noise whose first pixel is ten times the label."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, count, np.uint8)
    labels[:10] = np.arange(10)
    images = random.integers(0, 256, (count, side, side), np.uint8)
    images[:, 0, 0] = labels * 10
    return images, labels


def plant_mnist(folder: Path) -> None:
    for part, count in (("train", 40), ("t10k", 20)):
        images, labels = digits(count)
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", images if part == "train" else images[::-1])
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels if part == "train" else labels[::-1])


def cifar_records(count: int, seed: int) -> bytes:
    """Records whose first pixel is ten times the label."""
    records = np.random.default_rng(seed).integers(0, 256, (count, 3073), np.uint8)
    records[:, 0] %= 10
    records[:, 1] = records[:, 0] * 10
    return records.tobytes()


def plant_cifar10(folder: Path) -> None:
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for seed, name in enumerate([*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            content = cifar_records(8 + seed, seed)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def encoded(pixels: Any, kind: str = "png") -> bytes:
    pytest.importorskip("PIL")
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def plant_parquet(folder: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for split, count in (("train", 40), ("test", 20)):
        images, labels = digits(count, 32)
        columns = {"jpeg": [encoded(np.stack([image] * 3, -1)) for image in images], "label": labels}
        parquet.write_table(pyarrow.table(columns), folder / f"cifar10-{split}.parquet")


def plant_imagenet_subset(folder: Path) -> None:
    """Two classes in different greys, in files of different kinds and sizes."""
    random = np.random.default_rng(0)
    for grey, name in ((50, "n01"), (200, "n02")):
        (folder / name).mkdir()
        for number in range(20):
            pixels = random.integers(grey - 20, grey + 20, (20 + number, 30, 3), np.uint8)
            kind = ("JPEG", "png")[number % 2]
            (folder / name / f"{number:02}.{kind}").write_bytes(encoded(pixels, kind))
    (folder / "readme.txt").write_text("no class")


def plant_shakespeare(folder: Path) -> None:
    letters = np.random.default_rng(0).choice(list("abcdefgh \n"), 1000)
    (folder / "tinyshakespeare.txt").write_text("".join(letters))


def squad_of(questions: list[tuple[str, str]]) -> str:
    asked = [
        {"question": question, "answers": [{"text": answer, "answer_start": CONTEXT.index(answer)}] * 2}
        for question, answer in questions
    ]
    return json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": asked}]}]})


def plant_squad(folder: Path) -> None:
    words = sorted(set(re.findall(r"\w+|\.", CONTEXT.lower())))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "##se", *words]) + "\n")
    answers = ["dog", "red dog", "old mat", "cat", "not old", "far hill", "the dog and ran", "hill ."]
    train = [(f"Who {a} {b} ?", answer) for answer in answers for a, b in (("old", "hill"), ("cat", "mat"))]
    (folder / "train-v1.1.json").write_text(squad_of(train))
    (folder / "dev-v1.1.json").write_text(squad_of([(f"whose {answer}", answer) for answer in answers]))


def plant_iwslt15(folder: Path) -> None:
    random = np.random.default_rng(0)
    for language in ("en", "vi"):
        words = [f"{language}{number}" for number in range(20)]
        (folder / f"vocab.{language}").write_text("\n".join(["<unk>", "<s>", "</s>", *words]) + "\n")
        for part, count in (("train", 30), ("tst2012", 10)):
            lines = [" ".join(random.choice([*words, "strange"], random.integers(3, 12))) for _ in range(count)]
            (folder / f"{part}.{language}").write_text("\n".join(lines) + "\n")


IMAGE = (Field("image", (3, 32, 32)), Field("label", (), 10))
WORLD = (
    Field("state", (4, 84, 84)),
    Field("action", (), 4),
    Field("reward", ()),
    Field("next_state", (4, 84, 84)),
    Field("done", ()),
)


@dataclass(frozen=True)
class Case:
    """fields that the data set serves, and who makes its files. classes: how many there are in these."""

    fields: tuple[Field, ...]
    plant: Callable[[Path], None] | None = None
    classes: int = 0


CASES = {
    "synthetic": Case((Field("image", (3, 8, 8)), Field("text", (5,), 7), Field("label", (), 10))),
    "mnist": Case((Field("image", (1, 28, 28)), Field("label", (), 10)), plant_mnist, 10),
    "cifar10": Case(IMAGE, plant_cifar10, 10),
    "imagenet_subset": Case(IMAGE, plant_imagenet_subset, 2),
    "shakespeare": Case((Field("text", (8,), 10), Field("label", (8,), 10)), plant_shakespeare, 10),
    "squad": Case(
        (Field("tokens", (32,), 40), Field("segments", (32,), 2), Field("mask", (32,)), Field("label", (2,), 32)),
        plant_squad,
    ),
    "iwslt15": Case(
        (Field("source", (9,), 23), Field("target", (7,), 23), Field("label", (7,), 23)), plant_iwslt15, 23
    ),
    "catch": Case(WORLD),
    "atari": Case(WORLD),
}
WITH_FOLDER = [name for name, case in CASES.items() if case.plant]
FINITE = ["shakespeare", "mnist", "cifar10", "imagenet_subset", "squad", "iwslt15"]


def planted(name: str, folder: Path) -> Path | None:
    plant = CASES[name].plant
    if plant is None:
        return None
    folder.mkdir(exist_ok=True)
    plant(folder)
    return folder


def request_for(name: str, folder: Path | None, **changes: Any) -> Request:
    return replace(Request(fields=CASES[name].fields, batch=BATCH, seed=5, folder=folder), **changes)


def available(name: str) -> Dataset:
    probe = DATASETS[name].probe()
    if not probe.ok:
        pytest.skip(probe.reason)
    return DATASETS[name]


def one_sentence(error: ErgoError, *parts: str) -> None:
    text = str(error)
    assert "\n" not in text and (text.endswith(".") or "pip install" in text), text
    for part in parts:
        assert part in text, text


def exhaust(dataset: Dataset, request: Request) -> None:
    """Every batch of an epoch."""
    stream = dataset.open(request)
    for _ in range(stream.length // request.batch):
        stream.batch()


def rows(batches: list[tuple[Any, ...]]) -> list[bytes]:
    """Each sample as bytes."""
    return [b"".join(array[row].tobytes() for array in batch) for batch in batches for row in range(len(batch[0]))]
