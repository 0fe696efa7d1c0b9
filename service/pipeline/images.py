"""Decoding of untrusted bytes into an upright RGB photo, with every limit on images.

Pixels become 8-bit RGB as follows:

- The EXIF orientation is applied, so that a photo is upright.
- The first frame of an animation or a multi-page file is used.
- Transparent pixels are blended with white.
- Grayscale and bilevel pictures get equal red, green and blue values; palette pictures get the
  palette's colours.
- 12-bit and 16-bit grayscale is scaled by its type (65535 → 255); 16-bit colour keeps the high
  byte. 32-bit and signed integers are scaled by the smallest and largest sample value that a TIFF
  names, and refused without them. Where TIFF says that white is zero, it is.
- CMYK, YCbCr and Lab are converted by Pillow's formulas; embedded colour profiles are ignored, as
  they were in training.
- 32-bit floating-point pictures have no agreed range and are refused.
"""

from __future__ import annotations

import base64
import binascii
import re
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from cam.counts import counted
from service.core.errors import (
    ImageTooLarge,
    InvalidTarget,
    Problem,
    UndecodableImage,
    one_line,
)
from service.pipeline.structure import check_structure

FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF")
MAX_SIDE: Final = 65_535
BAND: Final = 1_000_000
"""Pixels that are converted at a time."""
MAX_RUN_PIXELS: Final = 1920 * 1080
MAX_RUN_BYTES: Final = 2_000_000
"""Of a run-length encoded BMP, which Pillow decodes in Python: a second at most."""
BITS, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339
SAMPLE_LIMITS: Final = ((340, 280), (341, 281))
"""TIFF's tags SMinSampleValue or MinSampleValue, and SMaxSampleValue or MaxSampleValue."""
WHITE_IS_ZERO, SIGNED = 0, 2
TURNS: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation → the transposition that sets the photo upright."""
NAMES: Final = "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"
LARGEST: Final = 256_000_000
"""Maximum bytes of one file, unpacked if it is in a zip. A larger file is a bomb, or no photo."""


_decoding = threading.local()


@contextmanager
def decoders_heard() -> Iterator[None]:
    """Keep what Pillow warns of with the photo that it is about (`EncodedPhoto.warnings`), instead
    of printing it, while the block is open. The filters of warnings are those of the whole process:
    a command enters this once, in its main thread."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning, module=r"PIL\.")
        shown = warnings.showwarning

        def hear(message: Warning | str, *about: Any, **more: Any) -> None:
            notes = getattr(_decoding, "notes", None)
            if notes is None:
                shown(message, *about, **more)
            else:
                notes.append(" ".join(str(message).split())[:200])

        warnings.showwarning = hear
        yield


@contextmanager
def _noting(notes: list[str]) -> Iterator[None]:
    """Put what decoders warn of in this thread into `notes`."""
    _decoding.notes = notes
    try:
        yield
    finally:
        _decoding.notes = None


class EncodedPhoto:
    """An encoded image whose header has been read and checked, and whose pixels have not been read.

    The format is detected from the content, not from a name or a media type.

    Args:
        max_pixels: maximum of width × height.

    Raises:
        UndecodableImage, ImageTooLarge
    """

    def __init__(self, data: bytes, *, max_pixels: int) -> None:
        self._data, self._max_pixels = data, max_pixels
        if not data:
            raise UndecodableImage(f"the image is empty (0 bytes); send a {NAMES} image")
        check_structure(data, max_pixels=max_pixels)
        self._notes: list[str] = []
        with _as_problems(data, max_pixels), _noting(self._notes):
            # It reads from memory: where it is never decoded, there is nothing to close.
            self._image = Image.open(BytesIO(data), formats=FORMATS)
            _check_size(self._image, len(data), max_pixels)
        self.pixels = self._image.width * self._image.height
        """Width × height of the image at its full size."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the decoder has warned of so far, each once, where `decoders_heard` is open."""
        return tuple(dict.fromkeys(self._notes))

    def decode(self, *, least_side: int | None = None) -> Image.Image:
        """Decode the pixels, once.

        Args:
            least_side: for thumbnails, the number of pixels that the shorter side keeps: a JPEG is
                decoded at a half, a quarter or an eighth of its size if its shorter side stays that
                long, which takes proportionally less time. Do not set it for a model's input, whose
                probabilities would change by some hundredths.

        Returns:
            Mode RGB, upright.

        Raises:
            UndecodableImage, ImageTooLarge
        """
        opened = self._image
        del self._image  # it keeps its pixels, and who made this may still want the warnings
        with _as_problems(self._data, self._max_pixels), _noting(self._notes), opened as image:
            shrink = min(image.size) // least_side if least_side else 1
            if shrink > 1:
                image.draft(image.mode, (image.width // shrink, image.height // shrink))
            image.load()
            limits = _limits_of(image) if image.mode.startswith("I") else None
            return _rgb(_upright(image), limits)


def decode(data: bytes, *, max_pixels: int) -> Image.Image:
    """Decode an image; see `EncodedPhoto`.

    Raises:
        UndecodableImage, ImageTooLarge
    """
    return EncodedPhoto(data, max_pixels=max_pixels).decode()


def _check_size(image: ImageFile, size: int, max_pixels: int) -> None:
    if image.width * image.height > max_pixels:
        raise ImageTooLarge(
            f"the image has {image.width} × {image.height} = "
            f"{image.width * image.height / 1e6:.1f} megapixels; "
            f"at most {counted(max_pixels / 1e6, 'is', 'are', 'g')} allowed"
        )
    if max(image.size) > MAX_SIDE:
        raise ImageTooLarge(
            f"the image has {image.width} × {image.height} pixels; "
            f"at most {MAX_SIDE} are allowed on a side"
        )
    runs = bool(image.tile) and image.tile[0].codec_name == "bmp_rle"
    if runs and (image.width * image.height > MAX_RUN_PIXELS or size > MAX_RUN_BYTES):
        raise UndecodableImage(
            f"the BMP is run-length encoded and has {image.width} × {image.height} pixels in "
            f"{size} bytes; at most {MAX_RUN_PIXELS} pixels and {MAX_RUN_BYTES} bytes are decoded "
            "of such a file, so send a plain BMP, or a PNG"
        )


@contextmanager
def _as_problems(data: bytes, max_pixels: int) -> Iterator[None]:
    """Convert what a decoder raises in the block to a problem."""
    try:
        yield
    except Problem:
        raise
    except UnidentifiedImageError:
        file = counted(len(data), "byte is", "bytes are")
        raise UndecodableImage(f"the {file} not a {NAMES} image") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        found = re.search(r"\((\d+) pixels\)", str(error))
        said = counted(round(int(found[1]) / 1e6), "megapixel") if found else "too many pixels"
        most = counted(max_pixels / 1e6, "megapixel is", "megapixels are", "g")
        raise ImageTooLarge(f"the image has {said}; at most {most} allowed") from None
    except Exception as error:
        # Decoders raise nearly any exception on malicious bytes; none is a defect of the service.
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise UndecodableImage(f"the image is truncated or corrupt: {reason}") from None


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation like `ImageOps.exif_transpose`, but leave the EXIF block alone."""
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _limits_of(image: Image.Image) -> tuple[int, int]:
    """Return the numbers of black and white of a grayscale image of more than 8 bits.

    Raises:
        UndecodableImage: if the file does not say them, as one of 32-bit or signed integers.
    """
    tags = getattr(image, "tag_v2", {})  # of a TIFF; 16-bit PNGs have the range of their type
    bits, signed = int(tags.get(BITS, (16,))[0]), tags.get(SAMPLE_FORMAT, (1,))[0] == SIGNED
    low, high = 0, 2**bits - 1
    if bits > 16 or signed:
        low, high = (
            next((int(tags[tag][0]) for tag in names if tag in tags), 0) for names in SAMPLE_LIMITS
        )
        if high <= low:
            raise UndecodableImage(
                f"the image holds {bits}-bit {'signed ' * signed}integers, whose range is not "
                "known; send 8 or 16 bit without a sign, or a TIFF with SMinSampleValue and "
                "SMaxSampleValue"
            )
    return (high, low) if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO else (low, high)


def _rgb(image: Image.Image, limits: tuple[int, int] | None) -> Image.Image:
    """Return an image in mode RGB. Of integers of more than 8 bits, `limits` are the numbers of
    black and white."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode == "F":
        raise UndecodableImage(
            "the image holds 32-bit floating-point pixels, whose range is not known; "
            "send 8 or 16 bit"
        )
    if limits:
        black, white = limits
        return _in_bands(image, partial(_from_integers, black=black, white=white))
    if image.has_transparency_data:
        return _in_bands(image, _over_white)
    return image.convert("RGB")


def _in_bands(image: Image.Image, convert: Callable[[Image.Image], Image.Image]) -> Image.Image:
    """Convert some rows at a time, so that intermediate arrays take little memory."""
    whole = Image.new("RGB", image.size)
    rows = max(BAND // image.width, 1)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        whole.paste(convert(band), (0, top))
    return whole


def _from_integers(image: Image.Image, *, black: int, white: int) -> Image.Image:
    numbers = np.asarray(image, dtype=np.int64)
    shares = np.clip((numbers - black) / (white - black), 0, 1)
    shares[numbers == image.info.get("transparency")] = 1
    return Image.fromarray((shares * 255 + 0.5).astype(np.uint8)).convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    rgba = image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, "white")
    return Image.alpha_composite(white, rgba).convert("RGB")


def read_file(path: Path) -> bytes:
    """Return the bytes of an image file.

    Raises:
        UndecodableImage: if the file cannot be read.
        ImageTooLarge: if the file has more than `LARGEST` bytes.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe blocks, and a device has no end
            raise UndecodableImage(f"{path} cannot be read: it is not a file")
        if status.st_size > LARGEST:
            raise ImageTooLarge(f"{path} has {status.st_size} bytes; at most {LARGEST} are allowed")
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a name with a null byte raises a ValueError
        reason = error.strerror if isinstance(error, OSError) else one_line(error)
        raise UndecodableImage(f"{path} cannot be read: {reason}") from None


def decode_base64(text: str) -> bytes:
    """Return the bytes of a base64 text, which may be a data: URL, or in lines as in MIME.

    Raises:
        ValueError: if the text is not valid base64; its message says why.
    """
    if text.startswith("data:"):
        text = text.partition(",")[2]
    if "\n" in text[:80]:  # MIME breaks lines after 76 characters
        text = text.replace("\r", "").replace("\n", "")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)[:80]) from None


def picture_of(text: str, what: str, *, max_pixels: int) -> Image.Image:
    """Decode a picture that is part of the parameters, as RGB.

    Args:
        what: name of the picture in error messages, such as "target's mask".

    Raises:
        InvalidTarget: if the text is not valid base64, or not an allowed image.
    """
    try:
        return decode(decode_base64(text), max_pixels=max_pixels)
    except ValueError as error:
        raise InvalidTarget(f"the {what} is not valid base64: {error}") from None
    except Problem as problem:
        raise InvalidTarget(f"the {what}: {problem.detail}") from None
