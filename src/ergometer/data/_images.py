"""Images in the shape that a model takes.

An image is scaled until it covers height and width (bilinear), cut to its centre, made grey or RGB, and its values
0 to 1 become (value - 0.5) / 0.25, or / 0.5 for a model that generates images, whose own lie between -1 and 1.
"""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ergometer.core.dataset import Request
from ergometer.core.errors import UsageError
from ergometer.data._files import need_packages
from ergometer.data._stream import Shuffled, check_count, check_fields

if TYPE_CHECKING:
    from PIL import Image

Pixels = NDArray[np.uint8]
_CENTRE = 0.5
_SPREAD = 0.25
_SPREAD_GENERATED = 0.5
_GREY = np.array([0.299, 0.587, 0.114], np.float32)  # ITU-R 601, as Pillow has it
_NOT_AN_IMAGE = (OSError, SyntaxError, ValueError, EOFError)


class NotAnImageError(Exception):
    """Bytes that are no image."""


def image_shape(name: str, request: Request, native: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """The shape of the request's images; native: the size that needs no Pillow."""
    shape = check_fields(name, request, ("label", "noise"), image=3, label=0, noise=1)["image"].shape
    if shape[0] not in (1, 3):
        raise UsageError(f"{name} gives grey or RGB images and the model wants {shape[0]} channels: use 1 or 3.")
    if shape[1:] != native:
        need_packages("data", "pillow")
    return shape


def stream_images(
    name: str,
    request: Request,
    length: int,
    classes: int,
    load: Callable[[NDArray[np.int64]], tuple[Pixels, NDArray[Any]]],
) -> Shuffled:
    """Images with labels or with noise, as the request's fields say; load(indices) returns fitted images and labels."""
    fields = {field.name: field for field in request.fields}
    check_count(name, "classes", classes, fields.get("label"))
    noise = fields.get("noise")
    spread = _SPREAD if noise is None else _SPREAD_GENERATED

    def make(indices: NDArray[np.int64], random: np.random.Generator) -> dict[str, NDArray[Any]]:
        pixels, labels = load(indices)
        drawn = {} if noise is None else {"noise": random.standard_normal((len(indices), *noise.shape), np.float32)}
        return {"image": scale(pixels, spread), "label": labels, **drawn}

    return Shuffled(name, request, length, make)


def scale(pixels: Pixels, spread: float = _SPREAD) -> NDArray[np.float32]:
    scaled = pixels.astype(np.float32)
    scaled *= 1 / (255 * spread)
    scaled -= _CENTRE / spread
    return scaled


def fit(pixels: Pixels, shape: tuple[int, ...]) -> Pixels:
    """Images (N, channels, height, width) in another shape; without Pillow if height and width stay."""
    if pixels.shape[2:] != shape[1:]:
        from PIL import Image

        images = (Image.fromarray(p[0] if len(p) == 1 else np.ascontiguousarray(p.transpose(1, 2, 0))) for p in pixels)
        return np.stack([_fit(image, shape) for image in images])
    if pixels.shape[1] == shape[0]:
        return pixels
    if shape[0] == 3:
        return np.repeat(pixels, 3, axis=1)
    grey: NDArray[np.float32] = np.einsum("nchw,c->nhw", pixels, _GREY)
    return np.rint(grey)[:, None].astype(np.uint8)


def decode(source: Path | bytes, shape: tuple[int, ...]) -> Pixels:
    """An encoded image in that shape; NotAnImageError if it is none."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            # A JPEG is decoded no larger than needed.
            image.draft("L" if shape[0] == 1 else "RGB", (shape[2], shape[1]))
            return _fit(image, shape)
    except (*_NOT_AN_IMAGE, Image.DecompressionBombError) as error:
        raise NotAnImageError(str(error)) from error


def _fit(image: "Image.Image", shape: tuple[int, ...]) -> Pixels:
    from PIL import Image, ImageOps

    converted = image.convert("L" if shape[0] == 1 else "RGB")
    pixels = np.asarray(ImageOps.fit(converted, (shape[2], shape[1]), Image.Resampling.BILINEAR))
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
