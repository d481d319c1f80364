"""Every damaged file of a data set gets one clear sentence."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ergometer.core.errors import StoreError
from tests.datasets import (
    DATASETS,
    available,
    cifar_records,
    digits,
    encoded,
    exhaust,
    one_sentence,
    plant_parquet,
    planted,
    request_for,
    write_idx,
)


def overwrite(content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        path.write_bytes(content)

    return damage


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 3, len(data) // 3 + 40):
        data[at] ^= 0x55
    path.write_bytes(data)


def recount(path: Path) -> None:
    """A whole idx file, of one label fewer."""
    write_idx(path, digits(39)[1])


def mislabel(path: Path) -> None:
    write_idx(path, np.full(40, 11, np.uint8))


def boast(path: Path) -> None:
    """A header that says far more than there is."""
    with gzip.open(path, "wb") as file:
        file.write(bytes([0, 0, 8, 3]) + b"\x7f\xff\xff\xff" * 3)


def misname(path: Path) -> None:
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("data_batch_1.bin"), io.BytesIO())


def reorder(path: Path) -> None:
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))


def lengthen(path: Path) -> None:
    path.write_text(path.read_text() + "one more\n")


MNIST_IMAGES, MNIST_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
ASKED = '{"data": [{"paragraphs": [{"context": "a dog", "qas": [{"question": "who", "answers": [%s]}]}]}]}'
OUTSIDE = (ASKED % '{"text": "dog", "answer_start": 90}').encode()
DAMAGES = [
    ("mnist", MNIST_IMAGES, cut, "cut off"),
    ("mnist", MNIST_IMAGES, flip, "damaged"),
    ("mnist", MNIST_IMAGES, overwrite(b"<html>not found</html>"), "damaged"),
    ("mnist", MNIST_IMAGES, overwrite(b""), "not an idx file"),
    ("mnist", MNIST_IMAGES, overwrite(gzip.compress(bytes(100))), "not an idx file"),
    ("mnist", MNIST_IMAGES, boast, "too small"),
    ("mnist", MNIST_IMAGES, overwrite(gzip.compress(bytes([0, 0, 8, 3, *[0, 0, 0, 2] * 3]) + bytes(7))), "8 values"),
    ("mnist", MNIST_IMAGES, overwrite(gzip.compress(bytes([0, 0, 8, 3, *[0, 0, 0, 2] * 3]) + bytes(9))), "8 values"),
    ("mnist", MNIST_LABELS, recount, "39 labels"),
    ("mnist", MNIST_LABELS, mislabel, "label 11"),
    ("mnist", MNIST_LABELS, Path.unlink, "put it there"),
    ("cifar10", "cifar-10-binary.tar.gz", cut, "cut off"),
    ("cifar10", "cifar-10-binary.tar.gz", flip, "damaged"),
    ("cifar10", "cifar-10-binary.tar.gz", misname, "holds no data_batch_2.bin"),
    ("cifar10", "cifar-10-binary.tar.gz", overwrite(b"no archive"), "damaged"),
    ("cifar10", "cifar-10-binary.tar.gz", Path.unlink, "put it there"),
    ("imagenet_subset", "n01/04.JPEG", cut, "delete or replace it"),
    ("imagenet_subset", "n02/03.png", cut, "delete or replace it"),
    ("imagenet_subset", "n02/03.png", overwrite(b"no image"), "delete or replace it"),
    ("shakespeare", "tinyshakespeare.txt", overwrite(b"\xff\xfe" * 500), "UTF-8"),
    ("shakespeare", "tinyshakespeare.txt", Path.unlink, "put it there"),
    ("squad", "train-v1.1.json", cut, "JSON"),
    ("squad", "train-v1.1.json", overwrite(b'{"data": [{"paragraphs": 3}]}'), "JSON"),
    ("squad", "train-v1.1.json", overwrite((ASKED % '{"text": "dog"}').encode()), "JSON"),
    ("squad", "train-v1.1.json", overwrite((ASKED % '{"text": "dog", "answer_start": "x"}').encode()), "JSON"),
    ("squad", "train-v1.1.json", overwrite(OUTSIDE), "outside its paragraph"),
    ("squad", "train-v1.1.json", Path.unlink, "put it there"),
    ("squad", "vocab.txt", Path.unlink, "put it there"),
    ("squad", "vocab.txt", reorder, "vocabulary"),
    ("iwslt15", "vocab.vi", Path.unlink, "put it there"),
    ("iwslt15", "vocab.en", reorder, "vocabulary"),
    ("iwslt15", "train.vi", lengthen, "31 lines"),
    ("iwslt15", "train.en", overwrite(b"\xff\n" * 30), "UTF-8 text in line"),
    ("iwslt15", "train.vi", overwrite(b""), "0 lines"),
    ("iwslt15", "train.vi", overwrite(b"no line end"), "1 lines"),
    ("iwslt15", "train.en", Path.unlink, "put it there"),
]


@pytest.mark.parametrize(("name", "file", "damage", "part"), DAMAGES)
def test_a_damaged_file(name: str, file: str, damage: Callable[[Path], None], part: str, tmp_path: Path) -> None:
    planted(name, tmp_path)
    damage(tmp_path / file)
    with pytest.raises(StoreError) as caught:
        exhaust(available(name), request_for(name, tmp_path, batch=1))
    one_sentence(caught.value, str(tmp_path), Path(file).name, part)
    assert not list(tmp_path.glob(".cifar*"))


@pytest.mark.parametrize(
    ("content", "part"), [(bytes(3072), "whole records"), (b"", "whole records"), (b"\x0b" * 3073, "label 11")]
)
def test_damaged_records(content: bytes, part: str, tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(cifar_records(4, number))
    (tmp_path / "data_batch_3.bin").write_bytes(content)
    with pytest.raises(StoreError) as caught:
        exhaust(DATASETS["cifar10"], request_for("cifar10", tmp_path, batch=1))
    one_sentence(caught.value, "data_batch_3.bin", part)


def parquet_of(**columns: Any) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), path)

    return damage


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (cut, "no parquet file"),
        (overwrite(b"PAR1 but not really PAR1"), "no parquet file"),
        (parquet_of(jpeg=[b"no image"] * 4, label=[1] * 4), "cannot be decoded"),
        (parquet_of(jpeg=[None] * 3 + [b""], label=[1] * 4), "cannot be decoded"),
        (parquet_of(jpeg=["text"] * 4, label=[1] * 4), "has not a column"),
        (parquet_of(jpeg=[b"no image"] * 4), "has not a column"),
        (parquet_of(jpeg=[b"no image"] * 4, label=[12] * 4), "labels outside"),
        (parquet_of(jpeg=[b"no image"] * 4, label=["dog"] * 4), "has not a column"),
        (parquet_of(jpeg=[b"no image"] * 4, label=[1, None, 2, 3]), "has not a column"),
    ],
)
def test_damaged_parquet(damage: Callable[[Path], None], part: str, tmp_path: Path) -> None:
    plant_parquet(tmp_path)
    damage(tmp_path / "cifar10-train.parquet")
    with pytest.raises(StoreError) as caught:
        exhaust(DATASETS["cifar10"], request_for("cifar10", tmp_path, batch=1))
    one_sentence(caught.value, "cifar10-train.parquet", part)


def test_folders_of_photographs(tmp_path: Path) -> None:
    dataset = available("imagenet_subset")

    def refused(folder: Path, *parts: str, split: str = "train") -> None:
        with pytest.raises(StoreError) as caught:
            dataset.open(request_for("imagenet_subset", folder, split=split, batch=1))
        one_sentence(caught.value, *parts)

    refused(tmp_path, str(tmp_path), "no class folders")
    (tmp_path / "empty").mkdir()
    refused(tmp_path, "empty holds no .jpg or .png", "delete it")
    (tmp_path / "empty").rmdir()
    for place in ("train/cat", "train/dog", "val/dog"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.png").write_bytes(encoded(np.full((40, 40, 3), 9, np.uint8)))
    test = dataset.open(request_for("imagenet_subset", tmp_path, split="test", batch=1))
    assert test.length == 1 and test.batch()[1].tolist() == [1]
    assert dataset.open(request_for("imagenet_subset", tmp_path, batch=1)).length == 2
    (tmp_path / "val/cow").mkdir()
    refused(tmp_path, "val/cow", split="test")
