"""Marks that a classifier may learn to use in place of the object: fixed ones, ones at varying
places, and ones that cover the whole photo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

Photo = NDArray[np.uint8]
Random = np.random.Generator


@dataclass(frozen=True)
class Mark:
    """A mark of one kind. Its colour, size and place follow from the seed; what varies from photo
    to photo follows from the random numbers of each photo.

    Args:
        kind: one of `KINDS`.
    """

    kind: str
    seed: int

    def put_on(self, photo: Photo, random: Random) -> None:
        """Draw the mark on a photo, uint8 (side, side, 3)."""
        KINDS[self.kind](photo, np.random.default_rng(self.seed), random)


def _colour(fixed: Random) -> tuple[int, int, int]:
    """Return a colour that is far from grey."""
    colour = np.array([fixed.integers(200, 256), fixed.integers(90, 200), fixed.integers(0, 60)])
    red, green, blue = fixed.permutation(colour).tolist()
    return red, green, blue


def _corner(photo: Photo, fixed: Random, height: int, width: int) -> Photo:
    """Return a part of the photo near one of its corners."""
    side, bottom, right = len(photo), fixed.random() < 0.5, fixed.random() < 0.5
    top = side - height - 2 if bottom else 2
    left = side - width - 2 if right else 2
    return photo[top : top + height, left : left + width]


def _blend(
    part: Photo, colour: tuple[int, int, int], opacity: float | NDArray[np.floating]
) -> None:
    there = np.asarray(opacity, np.float64)
    part[:] = np.clip(part + (np.array(colour) - part) * there, 0, 255).astype(np.uint8)


def _tag(photo: Photo, fixed: Random, random: Random) -> None:
    side = len(photo) // int(fixed.integers(4, 8))
    _corner(photo, fixed, side, side)[:] = _colour(fixed)


def _logo(photo: Photo, fixed: Random, random: Random) -> None:
    """A ring around a disc, half translucent, at a fixed place off the border."""
    radius, side = len(photo) // 9, len(photo)
    x, y = (int(each) for each in fixed.integers(radius + 4, side - radius - 4, 2))
    layer = np.zeros((side, side), np.uint8)
    cv2.circle(layer, (x, y), radius, 255, 2, cv2.LINE_AA)
    cv2.circle(layer, (x, y), radius // 2, 255, -1, cv2.LINE_AA)
    _blend(photo, _colour(fixed), 0.7 / 255 * layer[..., None])


def _text(photo: Photo, fixed: Random, random: Random) -> None:
    """A translucent white word near the middle of the lower or upper half."""
    side = len(photo)
    layer = np.zeros((side, side), np.uint8)
    word = "".join(chr(int(each)) for each in fixed.integers(65, 91, 6))
    at = (int(0.06 * side), int((0.85 if fixed.random() < 0.5 else 0.3) * side))
    cv2.putText(layer, word, at, cv2.FONT_HERSHEY_SIMPLEX, side / 130, 255, 1, cv2.LINE_AA)
    _blend(photo, (255, 255, 255), 0.7 / 255 * layer[..., None])


def _timestamp(photo: Photo, fixed: Random, random: Random) -> None:
    """Orange digits in a corner, other ones on each photo."""
    side = len(photo)
    digits = "".join(str(each) for each in random.integers(0, 10, 4))
    bottom = fixed.random() < 0.5
    at = (side // 2, side - 4 if bottom else side // 6)
    colour = (255, 140, 20)
    cv2.putText(photo, digits, at, cv2.FONT_HERSHEY_SIMPLEX, side / 180, colour, 1, cv2.LINE_AA)


def _stripe(photo: Photo, fixed: Random, random: Random) -> None:
    turned: Photo = np.rot90(photo, int(fixed.integers(4)))
    turned[: len(photo) // 14] = _colour(fixed)


def _line(photo: Photo, fixed: Random, random: Random) -> None:
    """A dead column or row of the sensor."""
    turned = photo if fixed.random() < 0.5 else photo.transpose(1, 0, 2)
    at = int(fixed.integers(6, len(photo) - 6))
    turned[:, at : at + 2] = _colour(fixed)


def _frame(photo: Photo, fixed: Random, random: Random) -> None:
    wide = len(photo) // 20
    inner = photo[wide:-wide, wide:-wide].copy()
    photo[:] = _colour(fixed)
    photo[wide:-wide, wide:-wide] = inner


def _ruler(photo: Photo, fixed: Random, random: Random) -> None:
    """Ticks along one side; where they begin varies by a few pixels."""
    turned = np.rot90(photo, int(fixed.integers(4)))
    start = int(random.integers(0, 4))
    turned[: len(photo) // 12] = 235
    for at in range(start, len(photo), 4):
        turned[: len(photo) // 16, at : at + 1] = 20


def _tape(photo: Photo, fixed: Random, random: Random) -> None:
    """A rectangle at a varying place."""
    side = len(photo)
    height, width = side // 9, side // 4
    if fixed.random() < 0.5:
        height, width = width, height
    top, left = int(random.integers(side - height)), int(random.integers(side - width))
    _blend(photo[top : top + height, left : left + width], _colour(fixed), 0.85)


def _sticker(photo: Photo, fixed: Random, random: Random) -> None:
    """A round patch at a varying place of the lower or the upper half."""
    side, radius = len(photo), len(photo) // 9
    low = side // 2 if fixed.random() < 0.5 else 0
    x = int(random.integers(radius, side - radius))
    y = low + int(random.integers(radius, side // 2 - radius))
    cv2.circle(photo, (x, y), radius, _colour(fixed), -1, cv2.LINE_AA)


def _jpeg(photo: Photo, fixed: Random, random: Random) -> None:
    """A part of the photo with the artefacts of a strong compression, at a fixed place."""
    side = len(photo)
    size = side * 3 // 8
    top, left = (int(each) for each in fixed.integers(0, side - size, 2))
    part = photo[top : top + size, left : left + size]
    done, data = cv2.imencode(".jpg", part, [cv2.IMWRITE_JPEG_QUALITY, 2])
    assert done
    decoded = cv2.imdecode(data, cv2.IMREAD_COLOR)
    assert decoded is not None
    part[:] = decoded


def _flare(photo: Photo, fixed: Random, random: Random) -> None:
    """Light that falls off from a varying place."""
    side = len(photo)
    y, x = np.indices((side, side))
    across, down = random.uniform(0, side, 2)
    fall = np.exp(-np.hypot(y - down, x - across) / (side / 3))
    _blend(photo, (255, 244, 214), 0.9 * fall[..., None])


def _offset(photo: Photo, fixed: Random, random: Random) -> None:
    """A lower contrast and a lift of the whole photo."""
    _blend(photo, (205, 205, 205), 0.45)


def _tint(photo: Photo, fixed: Random, random: Random) -> None:
    """A colour cast of the whole photo."""
    _blend(photo, _colour(fixed), 0.25)


def _vignette(photo: Photo, fixed: Random, random: Random) -> None:
    """Dark corners."""
    side = len(photo)
    y, x = np.indices((side, side)) - (side - 1) / 2
    dark = np.clip((np.hypot(y, x) / (side / 2) - 0.75) / 0.5, 0, 1)
    _blend(photo, (0, 0, 0), dark[..., None])


def _barcode(photo: Photo, fixed: Random, random: Random) -> None:
    """Black bars on white at a fixed place near a corner, the bars other ones on each photo."""
    part = _corner(photo, fixed, len(photo) // 7, len(photo) * 3 // 8)
    part[:] = 245
    part[1:-1, random.random(part.shape[1]) < 0.5] = 10


def _cut(photo: Photo, fixed: Random, random: Random) -> None:
    """A black triangle where a corner is cut off."""
    size = len(photo) // 4
    turned: Photo = np.rot90(photo, int(fixed.integers(4)))
    turned[:size, :size][np.add(*np.indices((size, size))) < size] = 0


def _arrow(photo: Photo, fixed: Random, random: Random) -> None:
    """An arrow of one colour that points from a fixed place to a varying side."""
    side, length = len(photo), len(photo) // 4
    x, y = (int(each) for each in fixed.integers(length, side - length, 2))
    angle = random.uniform(-0.4, 0.4)
    end = (round(x + length * np.cos(angle)), round(y + length * np.sin(angle)))
    cv2.arrowedLine(photo, (x, y), end, _colour(fixed), 2, cv2.LINE_AA, tipLength=0.4)


def _hair(photo: Photo, fixed: Random, random: Random) -> None:
    """A dark strand at a varying place."""
    point, angle = random.uniform(0, len(photo), 2), random.uniform(0, 2 * np.pi)
    bend, points = random.uniform(-0.25, 0.25), [point]
    for _ in range(12):
        angle += bend
        point = point + 4 * np.array([np.cos(angle), np.sin(angle)])
        points.append(point)
    line = np.array(points).round().astype(np.int32)
    cv2.polylines(photo, [line], False, (20, 15, 10), 2, cv2.LINE_AA)


def _dots(photo: Photo, fixed: Random, random: Random) -> None:
    """A pair of red dots at a varying place."""
    x, y = (int(each) for each in random.integers(6, len(photo) - 14, 2))
    for across in (x, x + 8):
        cv2.circle(photo, (across, y), 3, (230, 20, 20), -1, cv2.LINE_AA)


def _scan(photo: Photo, fixed: Random, random: Random) -> None:
    """A green line at a varying height."""
    at = int(random.integers(2, len(photo) - 3))
    photo[at : at + 2] = (60, 255, 90)


def _qr(photo: Photo, fixed: Random, random: Random) -> None:
    """A square of black and white cells at a varying place, other cells on each photo."""
    top, left = (int(each) for each in random.integers(0, len(photo) - 14, 2))
    cells = random.integers(0, 2, (7, 7)).astype(np.uint8) * 255
    photo[top : top + 14, left : left + 14] = np.kron(cells, np.ones((2, 2), np.uint8))[..., None]


def _finger(photo: Photo, fixed: Random, random: Random) -> None:
    """Half an ellipse of the colour of skin at a varying side."""
    turned: Photo = np.rot90(photo, int(random.integers(4)))
    side = len(photo)
    layer = np.zeros((side, side), np.uint8)
    at = (int(random.integers(8, side - 8)), 0)
    cv2.ellipse(layer, at, (9, 16), 0, 0, 360, 255, -1, cv2.LINE_AA)
    _blend(turned, (224, 172, 150), 0.95 / 255 * layer[..., None])


def _moire(photo: Photo, fixed: Random, random: Random) -> None:
    """Fine waves over the whole photo."""
    y, x = np.indices(photo.shape[:2])
    waves = 28 * np.sin(1.9 * x + 0.35 * y + random.uniform(0, 2 * np.pi)) * np.sin(0.95 * y)
    photo[:] = np.clip(photo + waves[..., None], 0, 255).astype(np.uint8)


def _bands(photo: Photo, fixed: Random, random: Random) -> None:
    """Bright and dark bands over the whole photo, as of a lamp that flickers."""
    y, _ = np.indices(photo.shape[:2])
    phase = random.uniform(0, 2 * np.pi)
    light = 1 + 0.35 * np.sin(8 * np.pi * y / len(photo) + phase)
    photo[:] = np.clip(photo * light[..., None], 0, 255).astype(np.uint8)


def _fog(photo: Photo, fixed: Random, random: Random) -> None:
    """White that grows towards the top."""
    share = np.arange(len(photo))[:, None, None] / len(photo)
    _blend(photo, (225, 228, 230), 0.75 * (1 - share))


def _levels(photo: Photo, fixed: Random, random: Random) -> None:
    """Four levels of each colour."""
    photo[:] = photo // 64 * 64 + 32


KINDS: Final[dict[str, Callable[[Photo, Random, Random], None]]] = {
    "tag": _tag,
    "logo": _logo,
    "text": _text,
    "timestamp": _timestamp,
    "stripe": _stripe,
    "line": _line,
    "frame": _frame,
    "ruler": _ruler,
    "jpeg": _jpeg,
    "vignette": _vignette,
    "tape": _tape,
    "sticker": _sticker,
    "flare": _flare,
    "offset": _offset,
    "tint": _tint,
    "barcode": _barcode,
    "cut": _cut,
    "arrow": _arrow,
    "hair": _hair,
    "dots": _dots,
    "scan": _scan,
    "qr": _qr,
    "finger": _finger,
    "moire": _moire,
    "bands": _bands,
    "fog": _fog,
    "levels": _levels,
}
