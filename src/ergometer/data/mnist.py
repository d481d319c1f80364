"""MNIST: 70,000 handwritten digits of 28x28 grey pixels (LeCun, Cortes, Burges)."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Dataset, File, Request
from ergometer.data._files import cannot_read, damaged, need_file, need_folder
from ergometer.data._images import Pixels, fit, image_shape, stream_images
from ergometer.data._stream import Shuffled

_CLASSES = 10
_LAYOUT = "{train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte, each with .gz or without"
_PIECE = 1 << 20  # bytes
_MOST_DEFLATED = 1100  # bytes that one byte of a gzip file can stand for
_SITE = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FILES = (
    ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9912422),
    ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881),
    ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877),
    ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542),
)


def open_mnist(request: Request) -> Shuffled:
    folder = need_folder("mnist", request, _LAYOUT)
    part = "train" if request.split == "train" else "t10k"
    images_path = need_file(folder, f"{part}-images-idx3-ubyte.gz", f"{part}-images-idx3-ubyte")
    labels_path = need_file(folder, f"{part}-labels-idx1-ubyte.gz", f"{part}-labels-idx1-ubyte")
    images, labels = _read_idx(images_path, 3), _read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise damaged(images_path, f"has {len(images)} images and {labels_path.name} has {len(labels)} labels")
    if len(labels) and labels.max() >= _CLASSES:
        raise damaged(labels_path, f"has the label {labels.max()} where 0 to {_CLASSES - 1} are expected")
    shape = image_shape("mnist", request, images.shape[1:])

    def load(indices: NDArray[np.int64]) -> tuple[Pixels, NDArray[Any]]:
        return fit(images[indices][:, None], shape), labels[indices]

    return stream_images("mnist", request, len(images), _CLASSES, load)


def _read_idx(path: Path, dimensions: int) -> Pixels:
    """The bytes of an idx file in their shape; StoreError if it is not whole."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            header = file.read(4 + 4 * dimensions)
            if header[:4] != bytes([0, 0, 8, dimensions]) or len(header) < 4 + 4 * dimensions:
                raise damaged(path, f"is not an idx file of {dimensions} dimensions of bytes")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            count = math.prod(shape)
            if count > path.stat().st_size * _MOST_DEFLATED:
                raise damaged(path, f"is too small for the {count} values that its header says")
            values = bytearray(count)
            # In pieces, straight to their place: read() would hold everything twice.
            filled = 0
            while got := file.readinto(memoryview(values)[filled : filled + _PIECE]):
                filled += got
            if filled < count or file.read(1):
                raise damaged(path, f"has not the {count} values that its header says")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, "is cut off or damaged") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    return np.frombuffer(values, np.uint8).reshape(shape)


DATASET = Dataset(
    name="mnist",
    title="MNIST, handwritten digits",
    tasks=("image classification", "image generation"),
    open=open_mnist,
    classes=_CLASSES,
    files=tuple(File(name=name, address=_SITE + name, sha256=sha256, size=size) for name, sha256, size in _FILES),
    layout=_LAYOUT,
)
