"""Strangers' bytes: every format and pixel mode by its rule, every limit before its pixels."""

from __future__ import annotations

import base64
import contextlib
import gc
import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import skimage.data
from PIL import Image

from service.core.errors import ImageTooLarge, UndecodableImage
from service.pipeline.images import EncodedPhoto, decode, decode_base64
from tests.service.conftest import encoded, noise
from tests.service.pipeline.counting import calls

LIMIT = 50_000_000


def pixels(data: bytes) -> np.ndarray:
    image = decode(data, max_pixels=LIMIT)
    assert image.mode == "RGB"
    return np.asarray(image).astype(int)


SMOOTH = noise(6, 4).resize((60, 40))


@pytest.mark.parametrize("name", ["PNG", "BMP", "TIFF", "GIF", "JPEG", "WEBP", "AVIF"])
def test_every_format_by_its_content(name: str) -> None:
    found = pixels(encoded(SMOOTH, name))
    exact = name in ("PNG", "BMP", "TIFF")
    difference = np.abs(found - np.asarray(SMOOTH).astype(int))
    assert difference.max() == 0 if exact else difference.mean() < 12


def test_the_caller_alone_holds_what_was_decoded() -> None:
    """Scores take seconds, in which only the encoded photo is held."""
    exif = Image.Exif()
    exif[0x0112] = 6
    file = BytesIO()
    noise(37, 23, 0).save(file, "JPEG", exif=exif.tobytes())
    photo = EncodedPhoto(file.getvalue(), max_pixels=LIMIT)
    assert photo.decode().size == (23, 37)
    images = [each for each in gc.get_objects() if isinstance(each, Image.Image)]
    assert [each.size for each in images if {*each.size} == {23, 37}] == []
    assert photo.pixels == 37 * 23


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_every_exif_orientation_comes_out_upright(name: str, orientation: int) -> None:
    upright = Image.new("RGB", (32, 16), "black")
    upright.paste("red", (0, 0, 16, 8))  # top left
    upright.paste("blue", (16, 8, 32, 16))  # bottom right
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = pixels(encoded(stored, name, exif=exif))
    assert found.shape == (16, 32, 3)
    assert found[4, 8, 0] > 200
    assert found[4, 8, 2] < 60
    assert found[12, 24, 2] > 200
    assert found[12, 24, 0] < 60


def test_transparency_is_laid_over_white() -> None:
    rgba = Image.new("RGBA", (3, 1))
    rgba.putdata([(255, 0, 0, 255), (0, 0, 0, 0), (0, 0, 0, 51)])
    np.testing.assert_array_equal(pixels(encoded(rgba))[0], [[255, 0, 0], [255] * 3, [204] * 3])
    la = Image.new("LA", (1, 1), (0, 0))
    np.testing.assert_array_equal(pixels(encoded(la))[0, 0], [255] * 3)
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putdata([0, 1])
    np.testing.assert_array_equal(
        pixels(encoded(palette, transparency=0))[0], [[255, 255, 255], [40, 50, 60]]
    )
    keyed = Image.new("RGB", (1, 1), (1, 2, 3))
    np.testing.assert_array_equal(pixels(encoded(keyed, transparency=(1, 2, 3)))[0, 0], [255] * 3)


def test_palette_gray_and_bilevel() -> None:
    palette = Image.new("P", (1, 1))
    palette.putpalette([10, 20, 30])
    np.testing.assert_array_equal(pixels(encoded(palette))[0, 0], [10, 20, 30])
    np.testing.assert_array_equal(pixels(encoded(Image.new("L", (1, 1), 77)))[0, 0], [77] * 3)
    np.testing.assert_array_equal(pixels(encoded(Image.new("1", (1, 1), 1)))[0, 0], [255] * 3)


@pytest.mark.parametrize("name", ["PNG", "TIFF"])
def test_sixteen_bit_gray_is_scaled_not_clipped(name: str) -> None:
    deep = Image.fromarray(np.array([[0, 257, 32768, 65535]], np.uint16))
    found = pixels(encoded(deep, name))[0, :, 0]
    np.testing.assert_array_equal(found, [0, 1, 128, 255])


def tiff(
    numbers: Sequence[int], kind: str, *, white_is_zero: bool = False, limits: Sequence[int] = ()
) -> bytes:
    """Return a TIFF of one row of gray pixels: `kind` is their type as NumPy writes it."""
    type_ = np.dtype(kind)
    deep = np.array(numbers, type_).tobytes()
    bits, sign = 8 * type_.itemsize, 2 if type_.kind == "i" else 1
    short, long = (3, "H2x"), (9, "i")
    entries = [
        (256, short, len(numbers)),
        (257, short, 1),
        (258, short, bits),
        (262, short, int(not white_is_zero)),
        (273, (4, "I"), 8),
        (277, short, 1),
        (278, short, 1),
        (279, (4, "I"), len(deep)),
        (339, short, sign),
        *((tag, long, limit) for tag, limit in zip((340, 341), limits, strict=False)),
    ]
    order = "<" if type_.byteorder in "<=|" else ">"
    packed = b"".join(
        struct.pack(f"{order}HHI{form}", tag, code, 1, value)
        for tag, (code, form), value in entries
    )
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8 + len(deep))
    return head + deep + struct.pack(f"{order}H", len(entries)) + packed + bytes(4)


@pytest.mark.parametrize(
    ("numbers", "kind", "more", "gray"),
    [
        ([0, 257, 65535], "<u2", {}, [0, 1, 255]),
        ([0, 257, 65535], ">u2", {}, [0, 1, 255]),
        ([0, 257, 65535], "<u2", {"white_is_zero": True}, [255, 254, 0]),
        ([0, 51, 255], "<u4", {"limits": (0, 255)}, [0, 51, 255]),
        ([-100, 0, 100], "<i4", {"limits": (-100, 100)}, [0, 128, 255]),
        ([-100, 0, 100], ">i4", {"limits": (-100, 100)}, [0, 128, 255]),
        ([-1024, 0, 3071], "<i2", {"limits": (-1024, 3071)}, [0, 64, 255]),
    ],
)
def test_integers_are_scaled_by_what_the_file_says(
    numbers: list[int], kind: str, more: dict[str, Any], gray: list[int]
) -> None:
    np.testing.assert_array_equal(pixels(tiff(numbers, kind, **more))[0, :, 0], gray)


@pytest.mark.parametrize("kind", ["<u4", "<i4", ">i4", "<i2", ">i2"])
@pytest.mark.parametrize("limits", [(), (0, 0), (5, 4)])
def test_integers_whose_range_is_not_known_are_refused(kind: str, limits: tuple[int, ...]) -> None:
    with pytest.raises(UndecodableImage, match=r"bit (signed )?integers, whose range is not known"):
        pixels(tiff([0, 1, 255], kind, limits=limits))


def test_twelve_bits_are_scaled_by_twelve_bits() -> None:
    packed = bytes([0x00, 0x0F, 0xFF])  # 0 and 4095
    whole = bytearray(tiff([0, 0], "<u2"))
    whole[8:11] = packed
    at = whole.index(struct.pack("<HHI", 258, 3, 1)) + 8
    whole[at : at + 2] = struct.pack("<H", 12)
    np.testing.assert_array_equal(pixels(bytes(whole))[0, :, 0], [0, 255])


def test_cmyk_becomes_rgb() -> None:
    cmyk = Image.new("CMYK", (16, 16), (0, 255, 255, 0))  # no cyan, all magenta and yellow: red
    red = pixels(encoded(cmyk, "JPEG"))[8, 8]
    assert red[0] > 200
    assert red[1:].max() < 60


def test_floating_point_pixels_are_refused() -> None:
    with pytest.raises(UndecodableImage, match="32-bit floating-point"):
        pixels(encoded(Image.new("F", (2, 2)), "TIFF"))


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for name in ("GIF", "WEBP", "PNG", "AVIF"):
        data = encoded(frames[0], name, save_all=True, append_images=frames[1:], duration=100)
        found = pixels(data)[4, 4]
        assert found[0] > 200, name
        assert found[2] < 60, name


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return (
        b"\x89PNG\r\n\x1a\n"
        + header
        + chunk(b"IDAT", zlib.compress(b"\0" * 9))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("width", "height"), [(8500, 6000), (12_000, 9000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)]
)
def test_too_many_pixels_are_refused_before_any_is_read(width: int, height: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ImageTooLarge, match="megapixels"):
            decode(png_header(width, height), max_pixels=LIMIT)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_exactly_the_limit_is_allowed() -> None:
    assert decode(encoded(noise(10, 10)), max_pixels=100).size == (10, 10)
    with pytest.raises(ImageTooLarge, match=r"10 × 11 = 0\.0 megapixels"):
        decode(encoded(noise(10, 11)), max_pixels=100)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"hello, I am a cat", "the 17 bytes are not a JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "are not a JPEG"),
        (b"%PDF-1.7", "are not a JPEG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "are not a JPEG"),
        (encoded(noise(64, 64), "JPEG")[:-900], "truncated or corrupt"),
        (encoded(noise(64, 64))[:400], "truncated or corrupt"),
        (png_header(10, 10), "truncated or corrupt"),
    ],
)
def test_what_is_no_image_is_said_to_be_none(data: bytes, words: str) -> None:
    with pytest.raises(UndecodableImage, match=words):
        decode(data, max_pixels=LIMIT)


def test_mutated_images_raise_nothing_but_problems() -> None:
    rng = np.random.default_rng(0)
    sources = [encoded(SMOOTH, n) for n in ("PNG", "BMP", "TIFF", "GIF", "JPEG", "WEBP", "AVIF")]
    for turn in range(700):
        data = bytearray(sources[turn % len(sources)])
        for place in rng.integers(0, len(data), rng.integers(1, 20)):
            data[place] = int(rng.integers(256))
        with contextlib.suppress(UndecodableImage, ImageTooLarge):
            decode(bytes(data), max_pixels=LIMIT)


def test_the_transparent_value_of_a_16_bit_grayscale_is_white() -> None:
    deep = Image.fromarray(np.array([[0, 500, 65535]], np.uint16))
    file = BytesIO()
    deep.save(file, "PNG", transparency=500)
    found = np.asarray(decode(file.getvalue(), max_pixels=100))
    assert found[0, :, 0].tolist() == [0, 255, 255]


def large(width: int, height: int) -> bytes:
    """A photo of an eye, smooth and fine, as a JPEG."""
    eye = Image.fromarray(skimage.data.retina()).resize((width, height))
    return encoded(eye, "JPEG")


@pytest.mark.parametrize(
    ("size", "least", "expected"),
    [
        ((1200, 900), 900, (1200, 900)),
        ((1200, 900), 450, (600, 450)),
        ((1200, 900), 451, (1200, 900)),
        ((1200, 900), 300, (600, 450)),
        ((1200, 900), 225, (300, 225)),
        ((1200, 900), 1, (150, 113)),
        ((1199, 901), 450, (600, 451)),
    ],
)
def test_a_jpeg_is_decoded_no_larger_than_needed(
    size: tuple[int, int], least: int, expected: tuple[int, int]
) -> None:
    image = EncodedPhoto(large(*size), max_pixels=LIMIT).decode(least_side=least)
    assert image.size == expected
    assert min(image.size) >= least


def test_a_reduced_photo_lies_as_its_camera_lay() -> None:
    file = BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(skimage.data.retina()).resize((1200, 900)).save(file, "JPEG", exif=exif)
    image = EncodedPhoto(file.getvalue(), max_pixels=LIMIT).decode(least_side=450)
    assert image.size == (450, 600)


def test_other_formats_stay_whole() -> None:
    data = encoded(noise(80, 60), "PNG")
    assert EncodedPhoto(data, max_pixels=LIMIT).decode(least_side=10).size == (80, 60)


def run_length_bmp(width: int, height: int, runs: bytes) -> bytes:
    """An 8-bit BMP with gray colours, its pixels as `runs` (BI_RLE8) from the bottom row up."""
    colours = b"".join(bytes([level, level, level, 0]) for level in range(256))
    start = 14 + 40 + len(colours)
    file = b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 256)
    return file + info + colours + runs


def test_a_run_length_encoded_bmp_is_an_ordinary_file() -> None:
    runs = b"\x03\x0a\x01\x14\0\0" + b"\0\x04\x01\x02\x03\x04\0\0" + b"\0\1"
    found = pixels(run_length_bmp(4, 2, runs))[..., 0]
    assert found.tolist() == [[1, 2, 3, 4], [10, 10, 10, 20]]


@pytest.mark.parametrize(
    ("width", "height", "runs"),
    [
        (1921, 1080, b"\0\1"),
        (4, 2, b"\x04\0" * 1_000_000),
    ],
    ids=["more pixels", "more bytes"],
)
def test_a_run_length_encoded_bmp_has_bounds_of_its_own(
    width: int, height: int, runs: bytes
) -> None:
    with pytest.raises(UndecodableImage, match="at most 2073600 pixels and 2000000 bytes"):
        decode(run_length_bmp(width, height, runs), max_pixels=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "runs",
    [b"\x01\0" * 999_000, b"\0\0" * 999_000, b"\0\2\0\0" * 499_000, b"\x0f\0\0\0" * 499_000],
    ids=["single pixels", "row ends", "steps to nowhere", "short rows"],
)
def test_the_worst_run_length_encoded_bmp_costs_a_call_for_each_byte_and_pixel(runs: bytes) -> None:
    """Pillow decodes it in Python, with calls of functions."""
    data = run_length_bmp(1920, 1080, runs)
    with calls() as made, suppress(UndecodableImage):
        decode(data, max_pixels=LIMIT)
    assert made[0] <= 1.5 * (len(data) + 1920 * 1080)


def test_base64_may_come_in_lines() -> None:
    data = noise(30, 30).tobytes()
    lines = base64.encodebytes(data).decode()
    assert decode_base64(lines) == decode_base64(lines.replace("\n", "\r\n")) == data
    with pytest.raises(ValueError, match="base64"):
        decode_base64("a%b=")
