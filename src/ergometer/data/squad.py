"""SQuAD v1.1: 98,000 questions whose answers are parts of a paragraph (Rajpurkar and others)."""

import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Dataset, File, Request
from ergometer.core.errors import UsageError
from ergometer.data._files import damaged, need_file, need_folder, need_packages, probe_packages, read_text
from ergometer.data._stream import Shuffled, check_count, check_fields, check_lengths

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SHORTEST = 8
_LONGEST_QUESTION = 64  # tokens, as BERT's authors have it
_LAYOUT = "train-v1.1.json, dev-v1.1.json and vocab.txt of bert-base-uncased"
_SITE = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"


@dataclass(frozen=True, slots=True)
class Question:
    """start, end: of the answer, in characters of the context."""

    text: str
    context: str
    start: int
    end: int


def open_squad(request: Request) -> Shuffled:
    need_packages("data", "tokenizers")
    fields = check_fields("squad", request, tokens=1, segments=1, mask=1, label=1)
    length = check_lengths("squad", *(fields[name] for name in ("tokens", "segments", "mask")))
    if length < _SHORTEST or fields["label"].shape != (2,):
        raise UsageError(
            f"squad gives {_SHORTEST} tokens or more and 2 labels, and the model wants {length} and "
            f"{fields['label'].shape[0]}: use --input with a longer sequence, and --classes 2."
        )
    folder = need_folder("squad", request, _LAYOUT)
    path = need_file(folder, "train-v1.1.json" if request.split == "train" else "dev-v1.1.json")
    vocabulary = _read_vocabulary(need_file(folder, "vocab.txt"))
    check_count("squad", "word pieces", len(vocabulary), fields["tokens"])
    questions = _read_questions(path)
    tokenizer = _make_tokenizer(vocabulary)
    edges = vocabulary["[CLS]"], vocabulary["[SEP]"]

    def make(indices: NDArray[np.int64], random: np.random.Generator) -> dict[str, NDArray[Any]]:
        # [PAD] is the first word of the vocabulary.
        arrays = {name: np.zeros((len(indices), length), np.int64) for name in ("tokens", "segments", "mask")}
        label = np.zeros((len(indices), 2), np.int64)
        for row, index in enumerate(indices):
            asked, told, label[row] = _window(tokenizer, questions[index], length)
            if not told:
                raise damaged(path, f"has an answer outside its paragraph, of {questions[index].text[:60]!r}")
            tokens = [edges[0], *asked, edges[1], *told, edges[1]]
            arrays["tokens"][row, : len(tokens)] = tokens
            arrays["segments"][row, len(asked) + 2 : len(tokens)] = 1
            arrays["mask"][row, : len(tokens)] = 1
        return {**arrays, "label": label}

    return Shuffled("squad", request, len(questions), make)


def _window(tokenizer: "Tokenizer", question: Question, length: int) -> tuple[list[int], list[int], tuple[int, int]]:
    """Tokens of the question and of the part of the context that has the answer, and the answer's first and last.

    A long context is cut into windows that overlap by half, of which the first that holds the whole answer is taken;
    an answer longer than that is cut off. No tokens if the answer is not in the context.
    """
    room = length - 3
    asked: list[int] = tokenizer.encode(question.text, add_special_tokens=False).ids
    asked = asked[: min(_LONGEST_QUESTION, room // 2)]
    room -= len(asked)
    context = tokenizer.encode(question.context, add_special_tokens=False)
    first = bisect_right([end for _, end in context.offsets], question.start)
    last = bisect_left([start for start, _ in context.offsets], question.end) - 1
    if not first <= last < len(context.ids):
        return [], [], (0, 0)
    stride = max(1, room // 2)
    begin = min(first, -(-max(0, last + 1 - room) // stride) * stride)
    shift = len(asked) + 2 - begin
    return asked, context.ids[begin : begin + room], (first + shift, min(last, begin + room - 1) + shift)


def _read_questions(path: Path) -> list[Question]:
    """Every question that has an answer, with the first of its answers."""
    try:
        return [
            _question(paragraph["context"], asked["question"], answer)
            for article in json.loads(read_text(path))["data"]
            for paragraph in article["paragraphs"]
            for asked in paragraph["qas"]
            for answer in asked["answers"][:1]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise damaged(path, "is cut off or not JSON of SQuAD v1.1") from error


def _question(context: Any, text: Any, answer: dict[str, Any]) -> Question:
    start = int(answer["answer_start"])
    return Question(str(text), str(context), start, start + len(answer["text"]))


def _read_vocabulary(path: Path) -> dict[str, int]:
    words = read_text(path).removesuffix("\n").split("\n")
    missing = {"[UNK]", "[CLS]", "[SEP]"} - set(words)
    if missing or words[0] != "[PAD]":
        raise damaged(path, "is not a vocabulary of BERT ([PAD] first, and [UNK], [CLS] and [SEP])")
    return {word: number for number, word in enumerate(words)}


def _make_tokenizer(vocabulary: dict[str, int]) -> "Tokenizer":
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


DATASET = Dataset(
    name="squad",
    title="SQuAD v1.1, questions about paragraphs",
    tasks=("question answering",),
    open=open_squad,
    probe=lambda: probe_packages("data", "tokenizers"),
    files=(
        File(
            name="train-v1.1.json",
            address=f"{_SITE}train-v1.1.json",
            sha256="3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
            size=30288272,
        ),
        File(
            name="dev-v1.1.json",
            address=f"{_SITE}dev-v1.1.json",
            sha256="95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
            size=4854279,
        ),
        File(
            name="vocab.txt",
            address="https://huggingface.co/google-bert/bert-base-uncased/resolve/main/vocab.txt",
            sha256="07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
            size=231508,
        ),
    ),
    layout=_LAYOUT,
)
