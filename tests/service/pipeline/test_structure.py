"""What a file's structure tells: hand-made files on either side of each limit, and real ones."""

from __future__ import annotations

import struct
from contextlib import suppress
from io import BytesIO
from typing import Any, Literal

import numpy as np
import pytest
import skimage.data
import tifffile
from PIL import Image

from service.core.errors import ImageTooLarge, Problem, UndecodableImage
from service.pipeline.images import EncodedPhoto, decode
from service.pipeline.structure import check_structure
from tests.chaos import corpus
from tests.service.conftest import encoded
from tests.service.pipeline.counting import calls

MAX_PIXELS = 10_000
SEGMENT, SCAN = b"\xff\xe5\0\2", b"\xff\xda\0\2\0\xff\0\1"
VALID = corpus.valid()
SOUND = VALID["jpeg"]
PAYLOAD = -1
"""Where the directory ends."""
BYTE, ASCII, SHORT, LONG, UNDEFINED, SSHORT, SLONG, IFD, LONG8 = 1, 2, 3, 4, 7, 8, 9, 13, 16
CODES = {BYTE: "B", SHORT: "H", LONG: "I", SSHORT: "h", SLONG: "i", IFD: "I", LONG8: "Q"}
FORMS = pytest.mark.parametrize(
    ("order", "large"),
    [("<", False), (">", False), ("<", True), (">", True)],
    ids=["II", "MM", "II-big", "MM-big"],
)
Entry = tuple[int, int, int, int]
"""A tag, its type, how many values, and the value or where they are."""


def jpeg(*, segments: int = 1, scans: int = 1) -> bytes:
    return b"\xff\xd8" + SEGMENT * segments + SCAN * scans + b"\xff\xd9"


def inside(data: bytes) -> bytes:
    """A sound JPEG with `data` behind its first segment."""
    return SOUND[:20] + data + SOUND[20:]


def png(chunks: int) -> bytes:
    empty = struct.pack(">I4sI", 0, b"abCd", 0)
    return VALID["png"][:33] + empty * (chunks - 2) + VALID["png"][-12:]


def tiff(
    entries: list[Entry], payload: bytes = b"", order: str = "<", large: bool = False
) -> bytes:
    """In either byte order; a `large` one is a BigTIFF."""
    mark = b"II" if order == "<" else b"MM"
    sizes = (43, 8, 0, 16, len(entries)) if large else (42, 8, len(entries))
    head = mark + struct.pack(order + ("HHHQQ" if large else "HIH"), *sizes)
    width, size = (8, 20) if large else (4, 12)
    end = len(head) + size * len(entries) + width
    fields = b""
    for tag, kind, count, number in entries:
        code = CODES[kind] if count == 1 and number >= 0 else "Q" if large else "I"
        value = struct.pack(order + code, number if number >= 0 else end - 1 - number)
        fields += struct.pack(order + ("HHQ" if large else "HHI"), tag, kind, count)
        fields += value.ljust(width, b"\0")
    return head + fields + bytes(width) + payload


def gray(*more: Entry, side: int = 64) -> list[Entry]:
    """The entries of a square picture."""
    size = [(256, LONG, 1, side), (257, LONG, 1, side)]
    return [*size, (258, SHORT, 1, 8), (259, SHORT, 1, 1), (262, SHORT, 1, 1), *more]


def check(data: bytes) -> None:
    check_structure(data, max_pixels=MAX_PIXELS)


def tile(width: int, length: int, kind: int = LONG) -> list[Entry]:
    return gray((322, kind, 1, width), (323, kind, 1, length), (324, LONG, 1, 8), (325, LONG, 1, 8))


@pytest.mark.parametrize(
    ("within", "beyond", "message"),
    [
        (jpeg(scans=100), jpeg(scans=101), "101 scans"),
        (jpeg(segments=2000), jpeg(segments=2001), "2001 segments"),
        (inside(b"\xff" * 1000), inside(b"\xff" * 2000), "2001 segments"),
        (png(10_000), png(10_001), "10001 chunks"),
    ],
    ids=["scans", "segments", "fill bytes", "chunks"],
)
def test_a_jpeg_or_png_may_have_so_many_parts(within: bytes, beyond: bytes, message: str) -> None:
    check(within)
    with pytest.raises(UndecodableImage, match=message):
        check(beyond)


@FORMS
def test_a_tiff_may_have_so_many_entries_and_values(order: str, large: bool) -> None:
    check(tiff([(tag, BYTE, 1, 0) for tag in range(1000, 2000)], b"", order, large))
    with pytest.raises(UndecodableImage, match="1001 entries; at most 1000 are"):
        check(tiff([(tag, BYTE, 1, 0) for tag in range(1000, 2001)], b"", order, large))
    values = bytes(2 * 65_537)
    check(tiff([(700, SHORT, 65_536, PAYLOAD)], values, order, large))
    with pytest.raises(UndecodableImage, match="65537 values of tag 700; at most 65536 are"):
        check(tiff([(700, SHORT, 65_537, PAYLOAD)], values, order, large))
    check(tiff([(270, ASCII, 100_000, PAYLOAD)], values, order, large))


@FORMS
@pytest.mark.parametrize("kind", [SHORT, LONG])
def test_a_tile_may_be_as_large_as_a_picture(order: str, large: bool, kind: int) -> None:
    check(tiff(tile(100, 100, kind), bytes(99), order, large))
    with pytest.raises(ImageTooLarge, match="tiles of 100 × 101 pixels"):
        check(tiff(tile(100, 101, kind), bytes(99), order, large))


@FORMS
def test_strips_lie_beside_each_other(order: str, large: bool) -> None:
    def strips(*counts: int) -> bytes:
        places = (8, 8 + 1024, 8 + 2048, 8 + 3072)
        entries = gray((273, LONG, 4, PAYLOAD), (278, SHORT, 1, 16), (279, LONG, 4, PAYLOAD - 16))
        return tiff(
            entries, struct.pack(order + "8I", *places, *counts) + bytes(4096), order, large
        )

    whole = len(strips(0, 0, 0, 0))
    check(strips(1024, 1024, 1024, 1024))
    check(strips(whole, whole // 2, 0, whole - whole // 2))
    with pytest.raises(UndecodableImage, match="strips lie over each other"):
        check(strips(whole, whole // 2, 1, whole - whole // 2))
    with pytest.raises(UndecodableImage, match="strips lie over each other"):
        check(strips(*[2**32 - 1] * 4))


@FORMS
def test_only_a_single_strip_may_be_of_unknown_length(order: str, large: bool) -> None:
    check(tiff(gray((273, LONG, 1, 8), (278, SHORT, 1, 64)), bytes(4096), order, large))
    halves = gray((273, LONG, 2, PAYLOAD), (278, SHORT, 1, 32))
    with pytest.raises(UndecodableImage, match="2 strips or tiles of unknown lengths"):
        check(tiff(halves, bytes(4096), order, large))


@pytest.mark.parametrize("name", VALID)
def test_every_kind_of_file_that_the_service_takes_passes(name: str) -> None:
    check(VALID[name])


@pytest.mark.parametrize(("byteorder", "bigtiff"), [("<", False), (">", False), ("<", True)])
@pytest.mark.parametrize("options", [{"tile": (32, 64)}, {"rowsperstrip": 1}, {}])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_photo_as_tiff_passes_and_is_decoded(
    byteorder: Literal["<", ">"], bigtiff: bool, options: dict[str, Any], compression: str | None
) -> None:
    file = BytesIO()
    cat = skimage.data.chelsea()
    tifffile.imwrite(
        file, cat, byteorder=byteorder, bigtiff=bigtiff, compression=compression, **options
    )
    photo = decode(file.getvalue(), max_pixels=200_000)
    np.testing.assert_array_equal(np.asarray(photo), cat)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"progressive": True}),
        ("JPEG", {"quality": 100, "exif": b"Exif\0\0II*\0\x08\0\0\0" + bytes(6)}),
        ("PNG", {}),
        ("PNG", {"compress_level": 0}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "jpeg"}),
        ("TIFF", {"big_tiff": True}),
    ],
)
@pytest.mark.parametrize("photo", ["chelsea", "coffee", "rocket"])
def test_a_photo_that_pillow_saves_passes(photo: str, kind: str, options: dict[str, Any]) -> None:
    pixels = getattr(skimage.data, photo)()
    data = encoded(Image.fromarray(pixels), kind, **options)
    assert decode(data, max_pixels=300_000).size == pixels.shape[1::-1]


def video(size: int) -> bytes:
    return np.random.default_rng(0).bytes(size)


@pytest.mark.parametrize(
    "data",
    [
        SOUND + video(9_000_000),
        inside(b"\xff\xeb\xff\xff" + SCAN * 8191 + b"-----"),
        VALID["png"] + bytes(200_000),
    ],
    ids=["a video behind a JPEG", "scans in a segment", "zeros behind a PNG"],
)
def test_what_a_decoder_never_looks_at_does_not_count(data: bytes) -> None:
    assert decode(data, max_pixels=MAX_PIXELS).size == (64, 48)


def cut_in_half(order: str) -> bytes:
    """Its lengths begin where the file nearly ends."""
    entries = gray((273, LONG, 2, PAYLOAD), (278, SHORT, 1, 32), (279, LONG, 2, PAYLOAD - 8))
    return tiff(entries, bytes(11), order)


@pytest.mark.parametrize(
    "data",
    [
        b"II+\0\x08\0\0\0" + struct.pack("<Q", 2**63),
        b"MM\0+\0\x08\0\0" + b"\xff" * 8,
        tiff(gray((322, LONG8, 1, PAYLOAD), (323, LONG, 1, 8)), bytes(8)),
        cut_in_half("<"),
        cut_in_half(">"),
    ],
    ids=["directory at 2^63", "directory at 2^64", "tile of 8 bytes", "II cut", "MM cut"],
)
def test_a_file_of_absurd_numbers_is_a_problem_and_no_defect(data: bytes) -> None:
    with pytest.raises(UndecodableImage):
        decode(data, max_pixels=MAX_PIXELS)


@pytest.mark.parametrize("name", ["jpeg", "jpeg-exif", "png", "tiff", "tiff-16-bit"])
def test_a_file_that_is_cut_short_anywhere_is_a_problem_or_none(name: str) -> None:
    for end in range(len(VALID[name])):
        with suppress(Problem):
            check(VALID[name][:end])


def overlapping(kind: int, count: int, value: int) -> bytes:
    """A picture of 10,000 strips, all of them its first bytes, whose lengths are told so."""
    entries = gray(
        (273, LONG, 10_000, PAYLOAD), (278, SHORT, 1, 99), (279, kind, count, value), side=100
    )
    return tiff(entries, struct.pack("<I", 8) * 10_000 + b"\1\0\0\0" * 10_000)


def many_strips(kind: int, order: str = "<") -> bytes:
    entries = gray((273, kind, 100_000, PAYLOAD), (278, SHORT, 1, 1), (279, kind, 100_000, PAYLOAD))
    return tiff(entries, b"\1" * 400_000, order)


DISGUISED = {
    "JPEG segments behind junk": inside(b"\0" + SEGMENT * 3000),
    "JPEG segments behind an escape": inside(b"\xff\0" + SEGMENT * 3000),
    "JPEG markers without a length": inside(b"\xff\xd0" * 100_000),
    "JPEG segments of no length": inside(b"\xff\xe5\0\0" * 100_000),
    "tile, signed": tiff(tile(20_000, 20_000, SLONG)),
    "tile, signed and short": tiff(tile(20_000, 20_000, SSHORT)),
    "tile, a directory": tiff(tile(20_000, 20_000, IFD)),
    "tile, told twice": tiff([*tile(20_000, 20_000), *tile(16, 16)]),
    "tile, told elsewhere": tiff(
        gray((322, LONG8, 1, PAYLOAD), (323, LONG, 1, 20_000)), struct.pack("<Q", 20_000)
    ),
    "strips, told in bytes": many_strips(BYTE),
    "strips, directories": many_strips(IFD),
    "strips behind a wrong magic": b"II\0*" + many_strips(LONG)[4:],
    "strips behind a doubtful magic": b"MM\0+" + many_strips(LONG, order=">")[4:],
    "strips of one length": overlapping(LONG, 1, 10_000),
    "strips of lengths in bytes": overlapping(BYTE, 10_000, PAYLOAD - 40_000),
    "strips of length 1 and many rows": overlapping(LONG, 10_000, PAYLOAD - 40_000),
    "tags that share their values": tiff(
        gray(*[(tag, UNDEFINED, 100_000, PAYLOAD) for tag in range(1000, 1100)]), bytes(100_000)
    ),
}


@pytest.mark.parametrize("name", DISGUISED)
def test_a_limit_is_not_passed_by_telling_the_same_in_another_way(name: str) -> None:
    with pytest.raises((UndecodableImage, ImageTooLarge)):
        check(DISGUISED[name])


WHOLE = {"heavy-png-exif", "heavy-png-gray16", "heavy-png-rgba", "heavy-webp"}
"""Decoding these costs no more than a few photos of as many pixels."""


@pytest.mark.slow
def test_files_that_are_made_to_cost_much_do_not() -> None:
    """They are refused before they are decoded, or the decoder is all that works."""
    heavy = {name: data for name, data in corpus.nasties().items() if name.startswith("heavy-")}
    assert len(heavy) >= 11
    refused, costs = set(), {}
    for name, data in heavy.items():
        with calls() as made:
            try:
                EncodedPhoto(data, max_pixels=50_000_000)
            except Problem:
                refused.add(name)
            else:
                decode(data, max_pixels=50_000_000)
        costs[name] = made[0]
    assert refused == heavy.keys() - WHOLE
    assert {name: each for name, each in costs.items() if each >= 30_000} == {}


def test_no_damage_makes_it_fail() -> None:
    for name, data in corpus.mutations(3000, seed=7):
        try:
            with suppress(Problem):
                check(data)
        except Exception as error:
            raise AssertionError(name) from error
