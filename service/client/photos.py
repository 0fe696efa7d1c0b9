"""What a caller has for a photo becomes what is sent."""

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
"""A path; an https address, or another one that the service may ask; the bytes of a file; a
picture; uint8 (H, W), (H, W, 3) or (H, W, 4). The pixels of a picture or an array are taken as
they are, whatever Exif says of them."""
LOSSLESS = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
"""Pillow's modes that PNG holds and the service reads."""
SIXTEEN_BIT = ("I", "I;16B", "I;16L", "I;16N")
STRAIGHT = {"PA": "RGBA", "La": "LA", "RGBa": "RGBA"}
"""Modes with transparency, and those of the same pixels that PNG holds."""


@dataclass(frozen=True)
class Named:
    """A photo that the service shall fetch itself."""

    field: str
    """`url` or `uri`."""
    address: str


def read(photo: Photo) -> bytes | Named:
    """A photo's bytes, or where the service finds them.

    Raises:
        OSError: if it is a path that cannot be read.
        TypeError, ValueError: if it is nothing that shows a photo.
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


def field_of(photo: Photo) -> dict[str, str]:
    """A photo as the field `image` of an instance in JSON."""
    content = read(photo)
    if isinstance(content, Named):
        return {content.field: content.address}
    return {"b64": base64.b64encode(content).decode("ascii")}


def instance_of(item: Photo | Mapping[str, Any], index: int) -> dict[str, Any]:
    """A photo as an instance in JSON: its id is its path or address as given, or else its index.
    A mapping is an instance already, but for its `image`, which may be any photo."""
    if isinstance(item, Mapping):
        if "image" not in item:
            keys = ", ".join(map(str, item)) or "none"
            raise ValueError(f"instance {index} has no image; its keys are {keys}")
        image = item["image"]
        sent = image if isinstance(image, Mapping) else field_of(image)
        return {"id": str(index), **item, "image": sent}
    name = fspath(item) if isinstance(item, (str, PathLike)) else str(index)
    return {"id": name, "image": field_of(item)}


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except ValueError as error:  # with a NUL, or half a character, no file is named so
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
    """As PNG, which loses nothing.

    Raises:
        ValueError: of 32-bit numbers, whose range nobody knows.
    """
    if picture.mode in SIXTEEN_BIT:
        picture = _sixteen_bit(picture)
    elif picture.mode == "F":
        raise ValueError("a picture's mode is F; convert it to RGB, L or I;16 first")
    elif picture.mode not in LOSSLESS:
        picture = picture.convert(STRAIGHT.get(picture.mode, "RGB"))
    file = BytesIO()
    # Little compression: it mostly travels less far than compressing takes.
    picture.save(file, "PNG", compress_level=1, exif=b"")
    return file.getvalue()


def _sixteen_bit(picture: Image.Image) -> Image.Image:
    """In the order of bytes that PNG files are written from.

    Raises:
        ValueError: if a number is none of 16 bits.
    """
    numbers = np.asarray(picture).astype(np.int64)
    if numbers.min() < 0 or numbers.max() > 65535:
        raise ValueError(
            f"a picture's mode is {picture.mode}, with numbers from {numbers.min()} to "
            f"{numbers.max()}; the service reads 0 to 65535, or 8 bit"
        )
    return Image.fromarray(numbers.astype(np.uint16))
