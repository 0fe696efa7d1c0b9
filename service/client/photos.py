"""Conversion of a caller's photos (paths, addresses, bytes, pictures, arrays) into request data."""

from __future__ import annotations

import base64
import errno
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Photo = str | PathLike[str] | bytes | Image.Image | NDArray[np.uint8]
"""A path; an https address, or another address that the service is allowed to read; the bytes of a
file; a Pillow image; or a uint8 array (H, W), (H, W, 3) or (H, W, 4). The pixels of an image or an
array are sent as they are, without regard to Exif data."""
LOSSLESS = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
"""Pillow modes that PNG can store and the service reads."""
SIXTEEN_BIT = ("I", "I;16B", "I;16L", "I;16N")
STRAIGHT = {"PA": "RGBA", "La": "LA", "RGBa": "RGBA"}
"""Pillow mode with transparency → equivalent mode that PNG can store."""


@dataclass(frozen=True)
class Named:
    """A photo that the service fetches itself."""

    field: str
    """Name of the field in the request: `url` or `uri`."""
    address: str


def read(photo: Photo) -> bytes | Named:
    """Return a photo's bytes, or the address at which the service fetches them.

    Raises:
        OSError: if the photo is a path that cannot be read.
        TypeError: if the type of the photo is not supported.
        ValueError: if an array or a picture cannot be sent.
    """
    if isinstance(photo, (bytes, bytearray, memoryview)):
        return bytes(photo)
    if isinstance(photo, np.ndarray):
        return _encoded(_picture(photo))
    if isinstance(photo, Image.Image):
        return _encoded(photo)
    if isinstance(photo, str) and "://" in photo:
        scheme = photo.partition("://")[0].lower()
        return Named("url" if scheme in ("http", "https") else "uri", photo)
    if isinstance(photo, (str, PathLike)):
        return _content(Path(photo))
    raise TypeError(
        f"a photo is a {type(photo).__name__}; it should be a path, an address, bytes, a Pillow "
        "image or a uint8 array"
    )


def field_of(content: bytes | Named) -> dict[str, str]:
    """Return what `read` returned as the field `image` of an instance in JSON."""
    if isinstance(content, Named):
        return {content.field: content.address}
    return {"b64": base64.b64encode(content).decode("ascii")}


def instance_of(item: Photo | Mapping[str, Any], index: int) -> dict[str, Any]:
    """Return a photo as an instance in JSON. Its id is its path or address as given, or else its
    index. A mapping is already an instance; only its `image` is converted, which may be any photo.

    Raises:
        ValueError: if a mapping has no `image`.
    """
    if isinstance(item, Mapping):
        if "image" not in item:
            keys = ", ".join(map(str, item)) or "none"
            raise ValueError(f"instance {index} has no image; its keys are {keys}")
        image = item["image"]
        sent = image if isinstance(image, Mapping) else field_of(read(image))
        return {"id": str(index), **item, "image": sent}
    name = fspath(item) if isinstance(item, (str, PathLike)) else str(index)
    return {"id": name, "image": field_of(read(item))}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except ValueError as error:  # the path has a NUL or a lone surrogate, so no such file exists
        raise OSError(errno.EINVAL, str(error), str(path)) from error


def _picture(array: NDArray[Any]) -> Image.Image:
    channels = array.shape[2:] if array.ndim == 3 else ()
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in ((), (3,), (4,)):
        raise ValueError(
            f"an array is {array.dtype} {array.shape}; it should be uint8 (H, W), (H, W, 3) or "
            "(H, W, 4)"
        )
    return Image.fromarray(array)


def _encoded(picture: Image.Image) -> bytes:
    """Return a picture as PNG, which is lossless.

    Raises:
        ValueError: if the picture has 32-bit floats, whose range is unknown, or integers that do
            not fit into 16 bits.
    """
    if picture.mode in SIXTEEN_BIT:
        picture = _sixteen_bit(picture)
    elif picture.mode == "F":
        raise ValueError("a picture's mode is F; convert it to RGB, L or I;16 first")
    elif picture.mode not in LOSSLESS:
        picture = picture.convert(STRAIGHT.get(picture.mode, "RGB"))
    file = BytesIO()
    # Low compression, because sending the data usually takes less time than compressing it.
    picture.save(file, "PNG", compress_level=1, exif=b"")
    return file.getvalue()


def _sixteen_bit(picture: Image.Image) -> Image.Image:
    """Convert a picture to mode I;16, from which Pillow writes PNG files.

    Raises:
        ValueError: if a number is not in 0 … 65535.
    """
    numbers = np.asarray(picture).astype(np.int64)
    if numbers.min() < 0 or numbers.max() > 65535:
        raise ValueError(
            f"a picture's mode is {picture.mode}, with numbers from {numbers.min()} to "
            f"{numbers.max()}; the service reads 0 to 65535, or 8 bit"
        )
    return Image.fromarray(numbers.astype(np.uint16))
