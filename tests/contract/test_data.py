"""Every data set: what it gives, and that the seed decides it."""

import gzip
import itertools
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ergometer.core.dataset import Request
from ergometer.core.errors import UnavailableError, UsageError
from ergometer.core.model import Field
from ergometer.data import _images
from tests.datasets import (
    BATCH,
    CASES,
    DATASETS,
    FINITE,
    TASKS,
    WITH_FOLDER,
    available,
    one_sentence,
    plant_cifar10,
    plant_mnist,
    plant_parquet,
    plant_squad,
    planted,
    request_for,
    rows,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path | None]:
    """The files of a data set, made once; not to be changed."""
    made: dict[str, Path | None] = {}

    def get(name: str) -> Path | None:
        if name not in made:
            made[name] = planted(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.mark.parametrize("name", DATASETS)
def test_a_data_set_describes_itself(name: str) -> None:
    dataset = DATASETS[name]
    assert dataset.name == name and dataset.title and dataset.tasks and set(dataset.tasks) <= TASKS
    assert bool(dataset.layout) == (CASES[name].plant is not None)
    for file in dataset.files:
        assert file.address.startswith("https://") and "/" not in file.name
        assert (re.fullmatch("[0-9a-f]{64}", file.sha256) and file.size > 0) or (file.sha256, file.size) == ("", 0)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_batches_fit_the_fields(name: str, split: str, folders: Callable[[str], Path | None]) -> None:
    stream = available(name).open(request_for(name, folders(name), split=split))
    for _ in range(5):
        batch = stream.batch()
        assert len(batch) == len(CASES[name].fields)
        for field, array in zip(CASES[name].fields, batch, strict=True):
            assert array.shape == (BATCH, *field.shape)
            if field.high is None:
                assert array.dtype == np.float32 and np.isfinite(array).all()
            else:
                assert array.dtype == np.int64 and array.min() >= 0 and array.max() < field.high


@pytest.mark.parametrize("name", DATASETS)
def test_the_seed_decides(name: str, folders: Callable[[str], Path | None]) -> None:
    def some(seed: int) -> list[tuple[Any, ...]]:
        stream = available(name).open(request_for(name, folders(name), seed=seed))
        return [stream.batch() for _ in range(12)]

    first, again, other = some(5), some(5), some(6)
    assert rows(first) == rows(again)
    assert rows(first) != rows(other)
    assert (rows(first[:1]) == rows(first[1:2])) == DATASETS[name].open(request_for(name, folders(name))).fixed


@pytest.mark.parametrize("name", FINITE)
def test_an_epoch_has_every_sample_once(name: str, folders: Callable[[str], Path | None]) -> None:
    stream = available(name).open(request_for(name, folders(name), batch=3))
    epochs = [[stream.batch() for _ in range(stream.length // 3)] for _ in range(2)]
    for epoch in epochs:
        assert len(set(rows(epoch))) == stream.length // 3 * 3
    assert rows(epochs[0]) != rows(epochs[1])
    whole = available(name).open(request_for(name, folders(name), batch=stream.length))
    assert sorted(rows([whole.batch()])) == sorted(rows([whole.batch()]))


@pytest.mark.parametrize("name", FINITE)
def test_train_and_test_are_different_samples(name: str, folders: Callable[[str], Path | None]) -> None:
    train, test = (available(name).open(request_for(name, folders(name), split=split)) for split in ("train", "test"))
    assert train.length > test.length > 0
    seen = set(rows([train.batch() for _ in range(train.length // BATCH)]))
    if name != "mnist":  # whose test images here are its train images, backwards
        assert not seen & set(rows([test.batch() for _ in range(test.length // BATCH)]))


@pytest.mark.parametrize("name", FINITE)
def test_a_batch_larger_than_the_set(name: str, folders: Callable[[str], Path | None]) -> None:
    with pytest.raises(UsageError) as caught:
        available(name).open(request_for(name, folders(name), batch=100_000))
    one_sentence(caught.value, name, "100000", "--batch")


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "synthetic"])
def test_a_model_of_another_kind(name: str, folders: Callable[[str], Path | None]) -> None:
    fields = CASES["squad" if name != "squad" else "mnist"].fields
    with pytest.raises(UsageError) as caught:
        available(name).open(request_for(name, folders(name), fields=fields))
    one_sentence(caught.value, name, fields[0].name, "--data")


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].classes])
def test_a_model_with_too_few_classes(name: str, folders: Callable[[str], Path | None]) -> None:
    count = CASES[name].classes
    fields = tuple(f if f.high is None else replace(f, high=count - 1) for f in CASES[name].fields)
    with pytest.raises(UsageError) as caught:
        available(name).open(request_for(name, folders(name), fields=fields))
    one_sentence(caught.value, name, f"{count} ", f"{count - 1}", f"--classes {count}")


@pytest.mark.parametrize("name", WITH_FOLDER)
def test_no_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (None, tmp_path / "absent", tmp_path / "file"):
        with pytest.raises(UsageError) as caught:
            available(name).open(request_for(name, folder))
        one_sentence(caught.value, "--data-dir")


@pytest.mark.parametrize("name", DATASETS)
def test_what_is_not_installed_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ergometer.data._files.find_spec", lambda module: None)
    probe = DATASETS[name].probe()
    if probe.ok:
        return
    assert "not installed" in probe.reason and "pip install 'ergometer[" in probe.remedy
    with pytest.raises(UnavailableError) as caught:
        DATASETS[name].open(request_for(name, planted(name, tmp_path)))
    one_sentence(caught.value, probe.reason, probe.remedy)


@pytest.mark.parametrize("name", ["synthetic", "mnist", "cifar10", "shakespeare", "iwslt15", "catch"])
def test_these_need_no_other_package(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = planted(name, tmp_path)
    for module in ("PIL", "pyarrow", "tokenizers", "gymnasium", "ale_py"):
        monkeypatch.setitem(sys.modules, module, None)
    request = request_for(name, folder)
    arrays = DATASETS[name].open(request).batch()
    assert [array.shape[1:] for array in arrays] == [field.shape for field in request.fields]


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_another_size_without_pillow(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ergometer.data._files.find_spec", lambda module: None)
    fields = (Field("image", (3, 40, 40)), Field("label", (), 10))
    with pytest.raises(UnavailableError) as caught:
        DATASETS[name].open(request_for(name, planted(name, tmp_path), fields=fields))
    one_sentence(caught.value, "pillow is not installed")


def first_pixels(batch: tuple[Any, ...]) -> Any:
    return np.rint((batch[0][:, 0, 0, 0] * 0.25 + 0.5) * 255).astype(int)


@pytest.mark.parametrize(
    ("name", "plant"), [("mnist", plant_mnist), ("cifar10", plant_cifar10), ("cifar10", plant_parquet)]
)
def test_labels_stay_with_their_images(name: str, plant: Callable[[Path], None], tmp_path: Path) -> None:
    plant(tmp_path)
    stream = DATASETS[name].open(request_for(name, tmp_path))
    seen = set()
    for _ in range(stream.length // BATCH):
        batch = stream.batch()
        np.testing.assert_array_equal(first_pixels(batch), batch[1] * 10)
        seen |= set(batch[1].tolist())
    assert len(seen) > 5


def test_photographs_have_the_label_of_their_folder(folders: Callable[[str], Path | None]) -> None:
    stream = available("imagenet_subset").open(request_for("imagenet_subset", folders("imagenet_subset"), batch=36))
    images, labels = stream.batch()
    assert stream.length == 36 and sorted(labels) == [0] * 18 + [1] * 18
    np.testing.assert_array_equal(images.mean((1, 2, 3)) > 0, labels == 1)


def test_the_archive_is_unpacked_once(tmp_path: Path) -> None:
    plant_cifar10(tmp_path)
    stream = DATASETS["cifar10"].open(request_for("cifar10", tmp_path))
    assert stream.length == 8 + 9 + 10 + 11 + 12
    assert {p.name for p in tmp_path.iterdir()} == {"cifar-10-binary.tar.gz", "cifar-10-batches-bin"}
    (tmp_path / "cifar-10-binary.tar.gz").unlink()
    again = DATASETS["cifar10"].open(request_for("cifar10", tmp_path / "cifar-10-batches-bin"))
    assert rows([stream.batch()]) == rows([again.batch()])


def test_plain_files_and_gzipped_ones_are_the_same(tmp_path: Path) -> None:
    plant_mnist(tmp_path)
    before = DATASETS["mnist"].open(request_for("mnist", tmp_path)).batch()
    for path in tmp_path.glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert rows([before]) == rows([DATASETS["mnist"].open(request_for("mnist", tmp_path)).batch()])


@pytest.mark.parametrize("name", ["mnist", "cifar10", "imagenet_subset"])
def test_generation_gets_images_and_noise(name: str, folders: Callable[[str], Path | None]) -> None:
    pytest.importorskip("PIL")
    fields = (Field("image", (3, 32, 32)), Field("noise", (500,)))
    stream = available(name).open(request_for(name, folders(name), fields=fields))
    (image, noise), (_, other) = stream.batch(), stream.batch()
    assert image.shape == (BATCH, 3, 32, 32) and -1 <= image.min() < image.max() <= 1
    assert noise.shape == (BATCH, 500) and noise.dtype == np.float32
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 1) < 0.1
    assert not np.array_equal(noise, other)


def test_images_cover_the_shape_and_keep_their_centre() -> None:
    pytest.importorskip("PIL")
    wide = np.zeros((1, 1, 10, 30), np.uint8)
    wide[..., 10:20] = 255  # the middle third, which is all that a square sees
    for shape in ((1, 10, 10), (3, 40, 40), (1, 5, 5)):
        fitted = _images.fit(wide, shape)
        assert fitted.shape == (1, *shape) and fitted.dtype == np.uint8
        assert fitted[0, :, :, 2:-2].min() > 250
    assert _images.fit(wide, (1, 10, 30)) is wide


def test_grey_and_colour() -> None:
    pytest.importorskip("PIL")
    red = np.zeros((2, 3, 8, 8), np.uint8)
    red[:, 0] = 200
    grey = _images.fit(red, (1, 8, 8))
    assert grey.shape == (2, 1, 8, 8) and (grey == 60).all()
    np.testing.assert_array_equal(_images.fit(red, (1, 4, 4)), grey[:, :, :4, :4])  # as Pillow does it
    assert (_images.fit(grey, (3, 8, 8)) == 60).all()
    values = _images.scale(np.array([0, 255], np.uint8))
    assert values.dtype == np.float32 and values.tolist() == [-2, 2]
    with pytest.raises(UsageError) as caught:
        fields = (Field("image", (4, 28, 28)), Field("label", (), 10))
        _images.image_shape("mnist", Request(fields=fields, batch=1, seed=0))
    one_sentence(caught.value, "4 channels")


def test_characters_follow_each_other(folders: Callable[[str], Path | None]) -> None:
    folder = folders("shakespeare")
    assert folder is not None
    text = (folder / "tinyshakespeare.txt").read_text()
    letters = sorted(set(text))
    for split, part in (("train", text[:900]), ("test", text[900:])):
        stream = DATASETS["shakespeare"].open(request_for("shakespeare", folder, split=split))
        assert stream.length == (len(part) - 1) // 8
        inputs, labels = stream.batch()
        np.testing.assert_array_equal(inputs[:, 1:], labels[:, :-1])
        for row in range(BATCH):
            assert "".join(letters[code] for code in (*inputs[row], labels[row, -1])) in part


@pytest.mark.parametrize("length", [8, 14, 20, 32])
def test_the_label_is_where_the_answer_is(length: int, tmp_path: Path) -> None:
    plant_squad(tmp_path)
    words = (tmp_path / "vocab.txt").read_text().split("\n")
    names = ("tokens", "segments", "mask")
    fields = (*(Field(n, (length,), 2 if n == "mask" else 40) for n in names), Field("label", (2,), length))
    answers = {answer.lower() for answer in ("not old", "far hill", "the dog and ran", "red dog", "cat", "hill .")}
    stream = available("squad").open(request_for("squad", tmp_path, fields=fields, batch=16))
    found = set()
    for tokens, segments, mask, (first, last) in zip(*stream.batch(), strict=True):
        text = [words[token] for token in tokens]
        used = int(mask.sum())
        assert mask[:used].all() and text[0] == "[CLS]" and text[used - 1] == "[SEP]" and set(text[used:]) <= {"[PAD]"}
        middle = text.index("[SEP]")
        assert not segments[: middle + 1].any() and segments[middle + 1 : used].all() and not segments[used:].any()
        assert middle < first <= last < used - 1
        found.add(" ".join(text[first : last + 1]))
    assert (answers if length > 8 else {"cat", "dog", "not old"}) <= found


def test_word_pieces(tmp_path: Path) -> None:
    plant_squad(tmp_path)
    stream = available("squad").open(request_for("squad", tmp_path, split="test"))
    tokens, *_ = stream.batch()
    words = (tmp_path / "vocab.txt").read_text().split("\n")
    assert all([words[token] for token in row[1:3]] == ["who", "##se"] for row in tokens)


def test_targets_are_shifted(folders: Callable[[str], Path | None]) -> None:
    folder = folders("iwslt15")
    assert folder is not None
    stream = DATASETS["iwslt15"].open(request_for("iwslt15", folder, batch=30))
    source, target, label = stream.batch()
    assert (target[:, 0] == 1).all() and (label[:, -1] == 2).all()
    vocabulary = (folder / "vocab.vi").read_text().split("\n")
    lines = [line.split() for line in (folder / "train.vi").read_text().splitlines()]
    kept = {tuple((word if word != "strange" else "<unk>") for word in line[:6]) for line in lines}
    for given, wanted in zip(target, label, strict=True):
        words = list(itertools.takewhile(lambda code: code != 2, wanted))
        assert tuple(vocabulary[code] for code in words) in kept
        assert given.tolist() == [1, *words, *[2] * (6 - len(words))]
    assert (source == 0).any() and (source[:, -1] == 2).any() and not (source == 1).any()
