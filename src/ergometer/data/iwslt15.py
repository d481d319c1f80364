"""IWSLT'15 English-Vietnamese: 133,000 sentence pairs of talks, as Stanford's NMT group has prepared them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Dataset, File, Request
from ergometer.data._files import cannot_read, damaged, need_file, need_folder, read_text
from ergometer.data._stream import Shuffled, check_count, check_fields, check_lengths

_UNKNOWN, _BEGIN, _END = 0, 1, 2
_SPECIAL = ["<unk>", "<s>", "</s>"]
_PIECE = 1 << 20  # bytes
_LAYOUT = "train.en, train.vi, tst2012.en, tst2012.vi, vocab.en and vocab.vi"
_SITE = "https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/"
# Nobody publishes checksums or sizes of the two vocabularies.
_FILES = (
    ("train.en", "c26dfeed74b6bf3752f5ca552f2412456f0de153f7c804df8717931fb3a5c78a", 13603614),
    ("train.vi", "707206edf2dc0280273952c7b70544ea8a1363aa69aaeb9d70514b888dc3067d", 18074646),
    ("tst2012.en", "b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2", 140250),
    ("tst2012.vi", "01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0", 188396),
    ("vocab.en", "", 0),
    ("vocab.vi", "", 0),
)


class Lines:
    """The lines of a text file, read from the disk when they are asked for."""

    def __init__(self, path: Path):
        self._path = path
        ends, size = [np.array([-1])], 0
        try:
            with open(path, "rb") as file:
                while piece := file.read(_PIECE):
                    ends.append(np.flatnonzero(np.frombuffer(piece, np.uint8) == ord("\n")) + size)
                    size += len(piece)
        except OSError as error:
            raise cannot_read(path, error) from error
        self._ends = np.concatenate(ends)  # of the line before the first, and of each
        if self._ends[-1] < size - 1:
            self._ends = np.append(self._ends, size)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def words(self, numbers: NDArray[np.int64]) -> list[list[str]]:
        """The words of each of these lines."""
        found = []
        try:
            with open(self._path, "rb", buffering=0) as file:
                for number in numbers:
                    file.seek(self._ends[number] + 1)
                    found.append(file.read(self._ends[number + 1] - self._ends[number]).decode().split())
        except UnicodeDecodeError as error:
            raise damaged(self._path, f"is not UTF-8 text in line {number + 1}") from error
        except OSError as error:
            raise cannot_read(self._path, error) from error
        return found


def open_iwslt15(request: Request) -> Shuffled:
    fields = check_fields("iwslt15", request, source=1, target=1, label=1)
    longest = fields["source"].shape[0], check_lengths("iwslt15", fields["target"], fields["label"])
    folder = need_folder("iwslt15", request, _LAYOUT)
    part = "train" if request.split == "train" else "tst2012"
    english, vietnamese = (_read_vocabulary(need_file(folder, f"vocab.{language}")) for language in ("en", "vi"))
    check_count("iwslt15", "English words", len(english), fields["source"])
    check_count("iwslt15", "Vietnamese words", len(vietnamese), fields["target"])
    check_count("iwslt15", "Vietnamese words", len(vietnamese), fields["label"])
    sources, targets = (Lines(need_file(folder, f"{part}.{language}")) for language in ("en", "vi"))
    if len(sources) != len(targets):
        raise damaged(folder / f"{part}.vi", f"has {len(targets)} lines and {part}.en has {len(sources)}")

    def make(indices: NDArray[np.int64], random: np.random.Generator) -> dict[str, NDArray[np.int64]]:
        source, target, label = (np.full((len(indices), size), _END) for size in (*longest, longest[1]))
        for row, (said, meant) in enumerate(zip(sources.words(indices), targets.words(indices), strict=True)):
            words = [english.get(word, _UNKNOWN) for word in said[: longest[0]]]
            source[row, : len(words)] = words
            words = [vietnamese.get(word, _UNKNOWN) for word in meant[: longest[1] - 1]]
            target[row, : len(words) + 1] = [_BEGIN, *words]
            label[row, : len(words)] = words
        return {"source": source, "target": target, "label": label}

    return Shuffled("iwslt15", request, len(sources), make)


def _read_vocabulary(path: Path) -> dict[str, int]:
    words = read_text(path).removesuffix("\n").split("\n")
    if words[:3] != _SPECIAL:
        raise damaged(path, f"is not a vocabulary that begins with {' '.join(_SPECIAL)}")
    return {word: number for number, word in enumerate(words)}


DATASET = Dataset(
    name="iwslt15",
    title="IWSLT'15, English to Vietnamese",
    tasks=("translation",),
    open=open_iwslt15,
    files=tuple(File(name=name, address=_SITE + name, sha256=sha256, size=size) for name, sha256, size in _FILES),
    layout=_LAYOUT,
)
