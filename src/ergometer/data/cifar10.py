"""CIFAR-10: 60,000 photographs of 32x32 pixels in 10 classes (Krizhevsky)."""

import gzip
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Dataset, File, Request
from ergometer.core.errors import StoreError
from ergometer.data._files import cannot_read, damaged, need_file, need_folder, need_packages
from ergometer.data._images import NotAnImageError, Pixels, decode, fit, image_shape, stream_images
from ergometer.data._stream import Shuffled

_CLASSES = 10
_RECORD = 1 + 3 * 32 * 32  # bytes: a label, then the red, green and blue planes
_ARCHIVE = "cifar-10-binary.tar.gz"
_EXTRACTED = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)
_LAYOUT = f"{_ARCHIVE}, or its .bin files, or cifar10-train.parquet and cifar10-test.parquet"

Load = Callable[[NDArray[np.int64]], tuple[Pixels, NDArray[Any]]]


def open_cifar10(request: Request) -> Shuffled:
    folder = need_folder("cifar10", request, _LAYOUT)
    parquet = folder / f"cifar10-{request.split}.parquet"
    length, load = _open_parquet(parquet, request) if parquet.is_file() else _open_binary(folder, request)
    return stream_images("cifar10", request, length, _CLASSES, load)


def _open_binary(folder: Path, request: Request) -> tuple[int, Load]:
    """The records of the binary version, read from the disk when they are drawn."""
    shape = image_shape("cifar10", request, (32, 32))
    names = _TRAIN if request.split == "train" else _TEST
    if not (folder / names[0]).is_file():
        if not (folder / _EXTRACTED).is_dir():
            _extract(need_file(folder, _ARCHIVE, f"cifar10-{request.split}.parquet"))
        folder /= _EXTRACTED
    paths = [need_file(folder, name) for name in names]
    starts = np.cumsum([0, *(_count_records(path) for path in paths)])

    def load(indices: NDArray[np.int64]) -> tuple[Pixels, NDArray[Any]]:
        which = np.searchsorted(starts, indices, "right") - 1
        rows = np.empty((len(indices), _RECORD), np.uint8)
        for number, path in enumerate(paths):
            chosen = which == number
            rows[chosen] = _read_records(path, indices[chosen] - starts[number])
        return fit(rows[:, 1:].reshape(-1, 3, 32, 32), shape), rows[:, 0]

    return int(starts[-1]), load


def _count_records(path: Path) -> int:
    size = path.stat().st_size
    if not size or size % _RECORD:
        raise damaged(path, f"has {size} bytes, which are no whole records of {_RECORD}")
    return size // _RECORD


def _read_records(path: Path, numbers: NDArray[np.int64]) -> Pixels:
    # Not a memory map: its pages would count as memory of the training that is measured.
    rows = np.zeros((len(numbers), _RECORD), np.uint8)
    try:
        with open(path, "rb", buffering=0) as file:
            for row, number in enumerate(numbers):
                file.seek(int(number) * _RECORD)
                rows[row] = np.frombuffer(file.read(_RECORD), np.uint8, _RECORD)
    except ValueError as error:
        raise damaged(path, "has become shorter") from error
    except OSError as error:
        raise cannot_read(path, error) from error
    if len(rows) and rows[:, 0].max() >= _CLASSES:
        raise damaged(path, f"has the label {rows[:, 0].max()} where 0 to {_CLASSES - 1} are expected")
    return rows


def _extract(archive: Path) -> None:
    """Unpack the archive's .bin files beside it; either all of them appear or none does."""
    target = archive.with_name(_EXTRACTED)
    unfinished = target.with_name(f".{_EXTRACTED}.{os.getpid()}")
    found = set()
    try:
        unfinished.mkdir()
        try:
            with gzip.open(archive) as stream:
                with tarfile.open(fileobj=stream, mode="r|") as tar:
                    for member in tar:
                        name = Path(member.name).name
                        source = tar.extractfile(member) if name in _TRAIN + _TEST else None
                        if source is not None:
                            found.add(name)
                            with open(unfinished / name, "wb") as out:
                                shutil.copyfileobj(source, out)
                while stream.read(1 << 20):  # to its end, where the checksum is
                    pass
        except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
            raise damaged(archive, "is cut off or damaged") from error
        missing = set(_TRAIN + _TEST) - found
        if missing:
            raise damaged(archive, f"holds no {min(missing)}")
        try:
            unfinished.rename(target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise StoreError(
            f"cannot unpack {archive} beside it ({why}): unpack it yourself (tar -xzf) into a folder with 190 MB of "
            "room and give that with --data-dir."
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _open_parquet(path: Path, request: Request) -> tuple[int, Load]:
    """The rows of a parquet file, kept encoded and decoded when they are drawn."""
    need_packages("data", "pillow", "pyarrow")
    import pyarrow
    from pyarrow import parquet, types

    shape = image_shape("cifar10", request)
    try:
        table = parquet.read_table(path, use_threads=False)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise damaged(path, "is cut off, damaged or no parquet file") from error
    encoded = next((f.name for f in table.schema if types.is_binary(f.type) or types.is_large_binary(f.type)), None)
    label = table.column("label") if "label" in table.column_names else None
    if encoded is None or label is None or not types.is_integer(label.type) or label.null_count:
        raise damaged(path, "has not a column of encoded images and a column `label` of whole numbers")
    labels = label.to_numpy()
    if len(labels) and not 0 <= labels.min() <= labels.max() < _CLASSES:
        raise damaged(path, f"has labels outside 0 to {_CLASSES - 1}")
    images = table.column(encoded)

    def load(indices: NDArray[np.int64]) -> tuple[Pixels, NDArray[Any]]:
        try:
            pixels = np.stack([decode(image or b"", shape) for image in images.take(indices).to_pylist()])
        except NotAnImageError as error:
            raise damaged(path, "has an image that cannot be decoded") from error
        return pixels, labels[indices]

    return table.num_rows, load


DATASET = Dataset(
    name="cifar10",
    title="CIFAR-10, small photographs",
    tasks=("image classification", "image generation"),
    open=open_cifar10,
    classes=_CLASSES,
    files=(
        File(
            name=_ARCHIVE,
            address=f"https://www.cs.toronto.edu/~kriz/{_ARCHIVE}",
            sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            size=170052171,
        ),
    ),
    layout=_LAYOUT,
)
