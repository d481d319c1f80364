"""Tiny Shakespeare: 1.1 million characters of his plays (Karpathy)."""

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Dataset, File, Request
from ergometer.data._files import need_file, need_folder, read_text
from ergometer.data._stream import Shuffled, check_count, check_fields, check_lengths

_NAME = "tinyshakespeare.txt"
_LAYOUT = f"{_NAME} or input.txt"
_TRAIN = 0.9


def open_shakespeare(request: Request) -> Shuffled:
    check_fields("shakespeare", request, text=1, label=1)
    path = need_file(need_folder("shakespeare", request, _LAYOUT), _NAME, "input.txt")
    characters, codes = np.unique(np.frombuffer(read_text(path).encode("utf-32-le"), "<u4"), return_inverse=True)
    for field in request.fields:
        check_count("shakespeare", "different characters", len(characters), field)
    length = check_lengths("shakespeare", *request.fields)
    border = int(len(codes) * _TRAIN)
    codes = (codes[:border] if request.split == "train" else codes[border:]).astype(np.uint32)

    def make(indices: NDArray[np.int64], random: np.random.Generator) -> dict[str, NDArray[np.uint32]]:
        windows = codes[indices[:, None] * length + np.arange(length + 1)]
        return {"text": windows[:, :-1], "label": windows[:, 1:]}

    return Shuffled("shakespeare", request, (len(codes) - 1) // length, make)


DATASET = Dataset(
    name="shakespeare",
    title="Tiny Shakespeare, characters of plays",
    tasks=("character prediction",),
    open=open_shakespeare,
    classes=65,
    files=(
        File(
            name=_NAME,
            address="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
            sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            size=1115394,
        ),
    ),
    layout=_LAYOUT,
)
