"""Draw several maps of one photo as a sheet: the photo, and a tile with a caption for each map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cam.drawing.overlay import Picture
from cam.drawing.panel import GAP, INK, PALE, SHORTEST_BAR, TEXT, TITLE, bar_width, draw_bar, fitted

SIDE = 160
"""Length of a tile's longer side, in pixels."""
ACROSS = 6
"""Largest number of tiles side by side."""


@dataclass(frozen=True, eq=False)
class CaptionedPicture:
    """A map on the photo, with its caption."""

    text: str
    picture: Picture
    """RGB uint8 (H, W, 3)."""
    line: str
    """What stands below the text, in small letters."""


def sheet_of(
    photo: Picture,
    tiles: Sequence[CaptionedPicture],
    title: str,
    lines: Sequence[str],
    *,
    side: int = SIDE,
    bar: tuple[str, tuple[str, str]] | None = None,
) -> Picture:
    """Draw the photo, and beside it each tile, in their order.

    Args:
        photo: RGB uint8 (H, W, 3).
        tiles: the tiles, of the photo's proportions; there may be none.
        title: the text in large letters. Text that does not fit is cut off with an ellipsis.
        lines: lines below the title, in small letters.
        side: length of a tile's longer side, in pixels.
        bar: the colour map of a colour bar at the right, and the captions of its top and bottom.

    Returns:
        RGB uint8 (H', W', 3) on white.
    """
    height, width = photo.shape[:2]
    factor = side / max(height, width)
    tall, wide = max(round(height * factor), 1), max(round(width * factor), 1)
    below = TEXT + 8 + TEXT + 4
    count = len(tiles) + 1
    columns = min(count, ACROSS)
    rows = -(-count // columns)
    head = GAP + TITLE + len(lines) * (TEXT + 8) + GAP
    right = columns * (wide + GAP) + GAP
    room = max(right + (bar_width(bar[1]) if bar else 0), 420)
    long = max(rows * (tall + below + GAP), SHORTEST_BAR + GAP if bar else 0)
    sheet = Image.new("RGB", (room, head + long), "white")
    pen = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(TITLE), ImageFont.load_default(TEXT)
    pen.text((GAP, GAP), fitted(title, TITLE, room - 2 * GAP), INK, large)
    for turn, line in enumerate(lines):
        y = GAP + TITLE + 8 + turn * (TEXT + 8)
        pen.text((GAP, y), fitted(line, TEXT, room - 2 * GAP), PALE, small)
    if bar:
        draw_bar(sheet, (right, head), tall, *bar)
    for number, one in enumerate([CaptionedPicture("", photo, "the photo"), *tiles]):
        left = GAP + number % columns * (wide + GAP)
        top = head + number // columns * (tall + below + GAP)
        way = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
        tile = cv2.resize(one.picture, (wide, tall), interpolation=way)
        sheet.paste(Image.fromarray(tile.astype(np.uint8)), (left, top))
        pen.text((left, top + tall + 4), fitted(one.text, TEXT, wide), INK, small)
        line_top = top + tall + (TEXT + 8 if one.text else 4)
        pen.text(
            (left, line_top),
            fitted(one.line, TEXT - 2, wide),
            PALE,
            ImageFont.load_default(TEXT - 2),
        )
    return np.asarray(sheet)
