"""Photographs in class folders, such as a subset of ImageNet, which may not be passed on and so is not downloaded."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Dataset, Request
from ergometer.core.errors import StoreError
from ergometer.data._files import cannot_read, need_folder, need_packages, probe_packages
from ergometer.data._images import NotAnImageError, Pixels, decode, image_shape, stream_images
from ergometer.data._stream import Shuffled

_SUFFIXES = {".jpg", ".jpeg", ".png"}
_TEST_EVERY = 10
_LAYOUT = (
    "a folder of .jpg or .png files for each class, with train/ and test/ (or val/) above them or without (nothing is "
    "downloaded: ImageNet has to be requested at https://image-net.org)"
)


def open_subset(request: Request) -> Shuffled:
    need_packages("data", "pillow")
    shape = image_shape("imagenet_subset", request)
    folder = need_folder("imagenet_subset", request, _LAYOUT)
    classes, paths, labels = _find_images(folder, request.split)

    def load(indices: NDArray[np.int64]) -> tuple[Pixels, NDArray[Any]]:
        return np.stack([_decode(paths[index], shape) for index in indices]), labels[indices]

    return stream_images("imagenet_subset", request, len(paths), classes, load)


def _find_images(folder: Path, split: str) -> tuple[int, list[Path], NDArray[np.int64]]:
    """How many classes there are, and the split's images with their labels."""
    train = split == "train"
    apart = next((folder / name for name in ("test", "val") if (folder / name).is_dir()), None)
    whole = folder / "train" if (folder / "train").is_dir() else folder
    if apart is None or whole == folder:
        classes = [_images(place) for place in _class_folders(whole)]
        chosen = [[path for n, path in enumerate(images, 1) if bool(n % _TEST_EVERY) == train] for images in classes]
    else:
        names = [place.name for place in _class_folders(folder / "train")]
        root = folder / "train" if train else apart
        strange = [place for place in _class_folders(root) if place.name not in names]
        if strange:
            raise StoreError(f"{strange[0]} is a class without a folder in {folder / 'train'}: add one or delete it.")
        chosen = [_images(root / name) if (root / name).is_dir() else [] for name in names]
    labels = np.repeat(np.arange(len(chosen)), [len(images) for images in chosen])
    return len(chosen), [path for images in chosen for path in images], labels


def _class_folders(folder: Path) -> list[Path]:
    try:
        found = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError as error:
        raise cannot_read(folder, error) from error
    if not found:
        raise StoreError(f"{folder} has no class folders: it must hold {_LAYOUT}.")
    return found


def _images(folder: Path) -> list[Path]:
    try:
        found = sorted(p for p in folder.iterdir() if p.suffix.lower() in _SUFFIXES and not p.name.startswith("."))
    except OSError as error:
        raise cannot_read(folder, error) from error
    if not found:
        raise StoreError(f"{folder} holds no .jpg or .png file: put its class's images there, or delete it.")
    return found


def _decode(path: Path, shape: tuple[int, ...]) -> Pixels:
    try:
        return decode(path, shape)
    except NotAnImageError as error:
        raise StoreError(f"{path} cannot be decoded as an image: delete or replace it.") from error


DATASET = Dataset(
    name="imagenet_subset",
    title="photographs in class folders",
    tasks=("image classification", "image generation"),
    open=open_subset,
    probe=lambda: probe_packages("data", "pillow"),
    layout=_LAYOUT,
)
