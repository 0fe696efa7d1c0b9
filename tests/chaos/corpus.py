"""What strangers may send, made by code. A file that some program executes creates `CANARY`."""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from random import Random
from typing import Final

import numpy as np
from PIL import Image, features

CANARY: Final = "/tmp/corpus-was-executed"
BOUNDARIES: Final = (0, 1, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
EXIF: Final = b"Exif\0\0"
PACKINGS: Final = ("tiff_lzw", "tiff_adobe_deflate", "packbits")
ORIENTATION, EXIF_IFD, SHUTTER, STRIPS, ROWS_PER_STRIP = 0x0112, 0x8769, 0x9201, 273, 278
LONG, RATIONAL, PAYLOAD = 4, 5, -1
Entries = dict[int, int | tuple[int, int, int]]


def valid(width: int = 64, height: int = 48) -> dict[str, bytes]:
    """A file of every format that the service takes and of its notable variants."""
    coarse = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    photo = Image.fromarray(coarse).resize((width, height))
    gray = photo.convert("L")
    deep = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    modes = {"rgba": Image.merge("RGBA", (*photo.split(), gray)), "1-bit": photo.convert("1")}
    kinds = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", *["AVIF"] * bool(features.check("avif"))]
    paged, pages = ("WEBP", "GIF", "TIFF"), {"save_all": True, "append_images": [photo.rotate(180)]}
    return {
        **{kind.lower(): _saved(photo, kind) for kind in kinds},
        **{f"{kind.lower()}-frames": _saved(photo, kind, **pages) for kind in paged},
        **{f"{kind.lower()}-16-bit": _saved(deep, kind) for kind in ("PNG", "TIFF")},
        **{f"png-{name}": _saved(image, "PNG") for name, image in modes.items()},
        **{f"jpeg-{mode}": _saved(photo.convert(mode), "JPEG") for mode in ("L", "CMYK")},
        **{f"tiff-{kind}": _saved(photo, "TIFF", compression=kind) for kind in PACKINGS},
        "jpeg-progressive": _saved(photo, "JPEG", progressive=True),
        "jpeg-exif": _saved(photo, "JPEG", exif=EXIF + _ifd({ORIENTATION: 6})),
        "png-palette": _saved(photo.quantize(16), "PNG", transparency=3),
        "png-interlaced": _interlaced(np.asarray(photo)),
        "webp-lossless": _saved(photo, "WEBP", lossless=True),
    }


def mutations(count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Valid files damaged at random, the same for the same seed; the name says what was done."""
    rng = Random(seed)
    sources = list(valid().items())
    kinds = list(_damages(bytearray(1), rng, b"0"))
    for turn in range(count):
        source, whole = sources[turn % len(sources)]
        choices = [*([kind] for kind in kinds), rng.choices(kinds, k=rng.randint(1, 8))]
        chosen = choices[turn // len(sources) % len(choices)]
        data = bytearray(whole)
        for kind in chosen:
            place, new = _damages(data, rng, rng.choice(sources)[1])[kind]
            data[place] = new
        yield f"{turn:05}-{source}-{'+'.join(chosen)}", bytes(data)


def nasties() -> dict[str, bytes]:
    """Hand-made files that lie, are broken or no image. Those named heavy-… keep to 50 megapixels
    and 10 MB, and are nevertheless made to cost seconds or hundreds of megabytes."""
    photo = valid()
    files = _broken(photo) | _odd() | _no_images(photo) | _heavy(photo["jpeg"])
    files |= {"empty": b"", "one-byte": b"\xff", "jpeg-soi": b"\xff\xd8"}
    files |= {"zeros": bytes(1_000_000), "random": Random(0).randbytes(1_000_000)}
    return files | {f"magic-{name}": data[:12] for name, data in photo.items()}


def bombs() -> dict[str, bytes]:
    """Twenty small files that claim, or inflate to, far more than 50 megapixels."""
    photo = valid()
    avif = photo.get("avif", b"\0\0\0\x20ftypavif\0\0\0\x14ispe")
    black, tile = Image.new("1", (16_000, 16_000)), _zeros(400_000_000)
    tiles: Entries = {259: 8, 322: 20_000, 323: 20_000, 324: PAYLOAD, 325: len(tile)}
    profile = png_chunk(b"iCCP", b"p\0\0" + zlib.compress(_zeros(4_000_000_000)))
    shapes = ((60_000, 1, 0), (20_000, 8, 0), (20_000, 8, 3), (20_000, 8, 6), (20_000, 16, 6))
    return {
        **{f"png-{x}-{bits}-{kind}": _png(x, x, bits, kind) for x, bits, kind in shapes},
        **{f"tiff-{kind}": _saved(black, "TIFF", compression=kind) for kind in PACKINGS},
        "tiff-tile-20000": _tiff(64, 64, tile, tiles),
        "png-20000-8-2": _png(20_000, 20_000, 8, 2),
        "png-interlaced-12000": _png(12_000, 12_000, 8, 2, lace=1),
        "png-iccp": _png(8, 8, 8, 2, profile),
        "png-ztxt": _png(8, 8, 8, 2, png_chunk(b"zTXt", b"k\0\0" + _zeros(500_000_000)) * 8),
        "gif-12000": _saved(Image.new("L", (12_000, 12_000)), "GIF"),
        "gif-30000": _put(photo["gif"], 6, struct.pack("<HH", 30_000, 30_000)),
        "bmp-rle-30000": _bmp(30_000, (b"\xff\0" * 118 + b"\0\0") * 30_000),
        "jpeg-progressive-30000x10000": _progressive(30_000, 10_000, scans=1000),
        "webp-lossless-16383": _webp(16_383),
        "webp-canvas-12000": _put(photo["webp-frames"], 24, b"\xdf\x2e\0" * 2),
        "avif-16000": _put(avif, avif.index(b"ispe") + 8, struct.pack(">II", 16_000, 16_000)),
    }


def _saved(image: Image.Image, kind: str, **options: object) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def _put(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def _damages(data: bytearray, rng: Random, other: bytes) -> dict[str, tuple[slice, bytes]]:
    """Every kind of damage, at random places: what is replaced, and by what."""
    at, early = rng.randrange(len(data) or 1), rng.randrange(min(200, len(data)) or 1)
    run = slice(at, at + (1 << rng.randrange(10)))
    old, size = bytes(data[run]), len(data[run])
    a, b, c, d = sorted(rng.choices(range(len(data) + 1), k=4))
    number = struct.pack(rng.choice("<>") + "I", rng.choice(BOUNDARIES))
    number = rng.choice((number, number[:2], number[2:]))
    masks = rng.choices([1 << bit for bit in range(8)], k=size)
    return {
        "flip": (run, bytes(byte ^ mask for byte, mask in zip(old, masks, strict=True))),
        "bytes": (run, rng.randbytes(size)),
        "run": (run, rng.choice((b"\0", b"\xff")) * size),
        "truncate": (slice(at, None), b""),
        "delete": (run, b""),
        "duplicate": (slice(at, at), old),
        "insert": (slice(at, at), rng.randbytes(size)),
        "splice": (slice(at, None), other[rng.randrange(len(other)) :]),
        "swap": (slice(a, d), bytes(data[c:d] + data[b:c] + data[a:b])),
        "integer": (slice(early, early + len(number)), number),
    }


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png(
    x: int, y: int, bits: int, kind: int, more: bytes = b"", rows: bytes = b"", lace: int = 0
) -> bytes:
    """Return a PNG of zeros, or of `rows`; two spare bytes a row leave room for interlacing."""
    stride = x * bits * {0: 1, 2: 3, 3: 1, 6: 4}[kind] // 8
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", x, y, bits, kind, 0, 0, lace))
    more = more or png_chunk(b"PLTE", bytes(768)) * (kind == 3)
    body = png_chunk(b"IDAT", rows or _zeros((stride + 2) * y))
    return b"\x89PNG\r\n\x1a\n" + header + more + body + png_chunk(b"IEND", b"")


def _interlaced(pixels: np.ndarray) -> bytes:
    """An Adam7 PNG, which Pillow reads and does not write."""
    steps = [
        map(int, digits) for digits in ("0088", "0488", "4084", "0244", "2042", "0122", "1021")
    ]
    parts = [pixels[top::down, left::right] for top, left, down, right in steps]
    rows = b"".join(b"\0" + row.tobytes() for part in parts if part.size for row in part)
    return _png(pixels.shape[1], pixels.shape[0], 8, 2, rows=zlib.compress(rows), lace=1)


def _zeros(size: int) -> bytes:
    """A zlib stream that inflates to zeros: one compressed mebibyte, repeated."""
    whole, last = zlib.compressobj(9, wbits=-15), zlib.compressobj(9, wbits=-15)
    mebibyte = whole.compress(bytes(1 << 20)) + whole.flush(zlib.Z_FULL_FLUSH)
    end = last.compress(bytes(size % (1 << 20))) + last.flush()
    return b"\x78\xda" + mebibyte * (size >> 20) + end + struct.pack(">HH", size % 65521, 1)


def _bmp(side: int, runs: bytes) -> bytes:
    sizes = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<III", 1078 + len(runs), 0, 1078) + sizes + bytes(1024) + runs


def _ifd(entries: Entries, payload: bytes = b"", then: int = 0) -> bytes:
    """A TIFF of one directory, by tag: a number, or a type, a count and where the values lie."""
    start, fields = 14 + 12 * len(entries), b""
    for tag, value in sorted(entries.items(), key=lambda entry: entry[0]):
        kind, count, number = value if isinstance(value, tuple) else (LONG, 1, value)
        fields += struct.pack("<HHII", tag, kind, count, start if number == PAYLOAD else number)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    return head + fields + struct.pack("<I", then) + payload


def _tiff(width: int, height: int, data: bytes, more: Entries, then: int = 0) -> bytes:
    """Gray and unpacked, unless `more` says otherwise; it says where the pixels lie."""
    plain: Entries = {256: width, 257: height, 258: 8, 259: 1, 262: 1}
    return _ifd(plain | more, data, then)


def _progressive(width: int, height: int, scans: int) -> bytes:
    """A JPEG whose last scan is repeated; each costs the decoder a walk over the whole picture."""
    small = _saved(Image.new("L", (16, 16)), "JPEG", progressive=True)
    last = small.rindex(b"\xff\xda")
    jpeg = small[:last] + small[last:-2] * scans + small[-2:]
    return _put(jpeg, jpeg.index(b"\xff\xc2") + 5, struct.pack(">HH", height, width))


def _webp(side: int) -> bytes:
    """Lossless and of one colour: its codes take no bits, so it is whole at whatever size."""
    data = _saved(Image.new("RGB", (16, 16), (9, 99, 199)), "WEBP", lossless=True)
    return _put(data, 21, struct.pack("<I", side - 1 | side - 1 << 14))


def _broken(photo: dict[str, bytes]) -> dict[str, bytes]:
    plain, jpeg, vast = _png(8, 8, 8, 2), photo["jpeg"], b"\xff" * 4
    sizes = ((-64, 48), (64, -48), (64, -(2**31)), (2**31 - 1, 2**31 - 1), (0, 0))
    return {
        **{f"bmp-{x}x{y}": _put(photo["bmp"], 18, struct.pack("<ii", x, y)) for x, y in sizes},
        "png-60000": _png(60_000, 60_000, 8, 2, rows=zlib.compress(bytes(9))),
        "jpeg-65535": _put(jpeg, jpeg.index(b"\xff\xc0") + 5, vast),
        "gif-65535": _put(photo["gif"], 6, vast),
        "tiff-vast": _tiff(0xFFFFFFFF, 48, bytes(64), {STRIPS: PAYLOAD}),
        "tiff-loop": _tiff(8, 8, bytes(64), {STRIPS: PAYLOAD}, then=8),
        "webp-16384": _put(photo["webp-frames"], 24, b"\xff\x3f\0" * 2),
        "png-wrong-crc": _put(plain, 29, bytes(4)),
        "png-without-iend": plain[:-12],
        "png-without-idat": plain[:33] + plain[-12:],
        "png-text": _png(8, 8, 8, 2, png_chunk(b"tEXt", b"k\0" + b"a" * 9_000_000)),
        "png-ztxt": _png(8, 8, 8, 2, png_chunk(b"zTXt", b"k\0\0" + _zeros(8 << 30))),
        "png-short-palette": _png(
            8, 8, 8, 3, png_chunk(b"PLTE", bytes(6)), zlib.compress(b"\1" * 72)
        ),
    }


def _odd() -> dict[str, bytes]:
    exifs = {f"exif-{turn}": EXIF + _ifd({ORIENTATION: turn}) for turn in range(1, 10)}
    exifs["exif-garbage"] = EXIF + Random(0).randbytes(999)
    exifs["exif-loop"] = EXIF + _ifd({EXIF_IFD: 8}, then=8)
    sizes = ((0, 0), (0, 8), (1, 1), (1, 10_000), (10_000, 1))
    modes = {"CMYK": "JPEG", "I;16": "TIFF", "F": "TIFF", "I": "TIFF"}
    photo = Image.new("RGB", (16, 9), "red")
    shades = [Image.new("L", (4, 4), shade % 256) for shade in range(1000)]
    pages = {"save_all": True, "append_images": shades[1:]}
    return {
        **{name: _saved(photo, "JPEG", exif=exif) for name, exif in exifs.items()},
        **{f"png-{x}x{y}": _png(x, y, 8, 2) for x, y in sizes},
        **{f"mode-{mode}": _saved(Image.new(mode, (16, 9)), kind) for mode, kind in modes.items()},
        **{f"{kind}-1000": _saved(shades[0], kind, **pages) for kind in ("GIF", "WEBP")},
    }


def _no_images(photo: dict[str, bytes]) -> dict[str, bytes]:
    icon, file = Image.new("RGB", (64, 64)), BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("../../evil.sh"), f"touch {CANARY}")
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><text>&x;</text></svg>"
    eps = f"%%BoundingBox: 0 0 9 9\n(%pipe%touch {CANARY}) (w) file showpage\n".encode()
    return {
        "jpeg+zip": photo["jpeg"] + file.getvalue(),
        "gif+javascript": _put(photo["gif"], 6, b"/*") + b"*/=1;alert(document.cookie)",
        "png+html": photo["png"] + b"<script>alert(document.cookie)</script>",
        "pdf+jpeg": b"%PDF-1.4\n" + photo["jpeg"],
        "svg": svg.replace(b"&x;", b"a cat"),
        "svg-xxe": b"<!DOCTYPE svg [<!ENTITY x SYSTEM 'file:///etc/passwd'>]>" + svg,
        "pdf": b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n",
        "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n" + eps,
        "ps": b"%!PS-Adobe-3.0\n" + eps,
        **{kind.lower(): _saved(icon, kind) for kind in ("ICO", "ICNS")},
        "psd": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 30_000, 30_000, 8, 3) + bytes(12),
        "html": b"<!doctype html><title>a cat</title><img src=x onerror=alert(1)>",
        "elf": b"\x7fELF\2\1\1" + bytes(9) + struct.pack("<HHI", 2, 62, 1) + bytes(40),
        "zip": file.getvalue(),
        "gzip": gzip.compress(photo["png"], mtime=0),
        "pickle": f"cos\nsystem\n(S'touch {CANARY}'\ntR.".encode(),
        "utf-16": "this is a photo of a cat".encode("utf-16"),
    }


def _heavy(jpeg: bytes) -> dict[str, bytes]:
    eight = struct.pack("<I", 8)
    ratios = _ifd({ORIENTATION: 6, SHUTTER: (RATIONAL, 300_000, PAYLOAD)}, eight * 600_000)
    overlap: Entries = {STRIPS: (LONG, 10_000, PAYLOAD), ROWS_PER_STRIP: 1999}
    strips: Entries = {STRIPS: (LONG, 1_000_000, PAYLOAD), ROWS_PER_STRIP: 1}
    return {
        "heavy-jpeg-scans": _progressive(4000, 4000, scans=1000),
        "heavy-jpeg-padding": jpeg[:2] + b"\xff" * 9_000_000 + jpeg[2:],
        "heavy-jpeg-segments": jpeg[:2] + b"\xff\xe5\0\2" * 2_000_000 + jpeg[2:],
        "heavy-png-chunks": _png(8, 8, 8, 2, png_chunk(b"abCd", b"") * 700_000),
        "heavy-png-exif": _png(8, 8, 8, 2, png_chunk(b"eXIf", ratios)),
        "heavy-png-gray16": _png(7000, 7000, 16, 0),
        "heavy-png-rgba": _png(7000, 7000, 8, 6),
        "heavy-webp": _webp(7000),
        "heavy-bmp-row-ends": _bmp(4000, b"\1\0\0\0" * 4000),
        "heavy-tiff-overlap": _tiff(2000, 2000, eight * 10_000 + bytes(2000 * 2000), overlap),
        "heavy-tiff-strips": _tiff(8, 8, eight * 1_000_000, strips),
    }
