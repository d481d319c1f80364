"""Every data set: what it gives, that the seed decides it, and one clear sentence for every damaged file."""

import gzip
import io
import itertools
import json
import re
import struct
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ergometer.core import registry
from ergometer.core.dataset import Dataset, Request
from ergometer.core.errors import ErgoError, StoreError, UnavailableError, UsageError
from ergometer.core.model import Field
from ergometer.data import _images
from ergometer.data._replay import Replay

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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path | None]:
    """The files of a data set, made once; not to be changed."""
    made: dict[str, Path | None] = {}

    def get(name: str) -> Path | None:
        if name not in made:
            made[name] = planted(name, tmp_path_factory.mktemp(name))
        return made[name]

    return get


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


class Counting:
    """Frames that say which they are: episodes of so many frames, numbered without end."""

    actions = 4

    def __init__(self, length: int) -> None:
        self.length = length
        self.shown = -1
        self.acted: list[int] = []

    def frame(self) -> Any:
        self.shown += 1
        return np.array([divmod(self.shown, 256)] * 2, np.uint8)

    def reset(self) -> Any:
        self.left = self.length - 1
        return self.frame()

    def act(self, action: int) -> tuple[Any, float, bool, bool]:
        self.acted.append(action)
        self.left -= 1
        return self.frame(), 7.0 if self.left else -7.0, not self.left, not self.left


@pytest.mark.parametrize(("capacity", "length"), [(1000, 7), (50, 7), (50, 1000), (20, 2)])
def test_what_was_lived_through_is_remembered_as_it_was(capacity: int, length: int) -> None:
    fields = (Field("state", (4, 2, 2)), *WORLD[1:3], Field("next_state", (4, 2, 2)), WORLD[4])
    world = Counting(length)
    replay = Replay(Request(fields=fields, batch=32, seed=0), world, capacity)
    for _ in range(40):
        replay.play(lambda state: np.zeros((1, 4)))
        state, _, reward, after, done = replay.batch()
        frames, following = (np.rint(s[:, :, 0] * 255).astype(int) @ (256, 1) for s in (state, after))
        numbers = frames[:, -1]
        assert (world.shown - numbers < capacity).all() and (numbers < world.shown).all()
        begins = numbers - numbers % length
        for back in range(4):
            np.testing.assert_array_equal(frames[:, 3 - back], np.maximum(numbers - back, begins))
            np.testing.assert_array_equal(following[:, 3 - back], np.maximum(numbers + 1 - back, begins))
        np.testing.assert_array_equal(done == 1, numbers % length == length - 2)
        np.testing.assert_array_equal(reward, np.where(done == 1, -1, 1))


def test_playing_is_greedy_nine_times_out_of_ten() -> None:
    fields = (Field("state", (4, 2, 2)), *WORLD[1:3], Field("next_state", (4, 2, 2)), WORLD[4])
    world = Counting(10)
    replay = Replay(Request(fields=fields, batch=200, seed=0), world)
    assert len(world.acted) == 200 and set(world.acted) == {0, 1, 2, 3}
    world.acted.clear()
    asked = []

    def policy(state: Any) -> Any:
        asked.append(state.shape)
        assert state.dtype == np.float32 and round(float(state[0, -1, 0, 1]) * 255) == world.shown % 256
        return np.array([[0.0, 1.0, 9.0, 2.0]])

    for _ in range(250):
        replay.play(policy)
    assert len(world.acted) == 1000 and set(asked) == {(1, 4, 2, 2)}
    assert 0.85 < len(asked) / 1000 < 0.95 and 0.88 < world.acted.count(2) / 1000 < 0.97


@pytest.mark.parametrize("name", ["catch", "atari"])
def test_worlds(name: str) -> None:
    dataset = available(name)

    def lived(seed: int) -> tuple[Any, ...]:
        world = dataset.open(request_for(name, None, seed=seed, batch=64))
        for _ in range(60):
            world.play(lambda state: state.mean((0, 2, 3))[None])
        batch: tuple[Any, ...] = world.batch()
        return batch

    state, action, _, after, _ = first = lived(3)
    assert rows([first]) == rows([lived(3)]) and rows([first]) != rows([lived(4)])
    assert state.min() >= 0 and 0.5 < state.max() <= 1 and set(action.tolist()) == {0, 1, 2, 3}
    np.testing.assert_array_equal(state[:, 1:][:, -1], after[:, -2])
    assert (state[:, -1] != after[:, -1]).any()
    six = request_for(name, None, batch=64, fields=(WORLD[0], Field("action", (), 6), *WORLD[2:]))
    if name == "catch":  # takes any number of actions, of which three move
        assert dataset.open(six).batch()[1].max() > 3
        return
    with pytest.raises(UsageError) as caught:
        dataset.open(six)
    one_sentence(caught.value, name, "--classes 4")


def test_catching_pays() -> None:
    from ergometer.data.catch import Catch

    world = Catch((84, 84), 4, 0)
    for follows in (True, False):
        total = 0.0
        for _ in range(60):
            frame, over = world.reset(), False
            while not over:
                ball, paddle = (np.flatnonzero((frame == grey).any(0)).mean() for grey in (255, 128))
                towards = 1 if ball < paddle - 2 else 2 if ball > paddle + 2 else 3
                frame, reward, done, over = world.act(towards if follows else 0)
            assert done and reward in (-1, 1)
            total += reward
        assert total == 60 if follows else total < 0
