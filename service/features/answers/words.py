"""Draw the words of an answer: a sheet with the photo and a tile for each word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cam.drawing.overlay import Picture
from cam.drawing.panel import GAP, INK, PALE, TEXT, TITLE, fitted

SIDE = 160
"""Length of a tile's longer side, in pixels."""
ACROSS = 6
"""Largest number of tiles side by side."""


@dataclass(frozen=True, eq=False)
class WordPicture:
    """A word with its map on the photo."""

    text: str
    picture: Picture
    """RGB uint8 (H, W, 3)."""
    line: str
    """What stands below the word, in small letters."""


def word_sheet(
    photo: Picture, words: Sequence[WordPicture], title: str, lines: Sequence[str]
) -> Picture:
    """Draw the photo, and beside it each word with its map, in the order in which they are said.

    Args:
        photo: RGB uint8 (H, W, 3).
        words: the words; there may be none.
        title: the whole answer. Text that does not fit is cut off with an ellipsis.
        lines: lines below the title, in small letters.

    Returns:
        RGB uint8 (H', W', 3) on white.
    """
    height, width = photo.shape[:2]
    factor = SIDE / max(height, width)
    tall, wide = max(round(height * factor), 1), max(round(width * factor), 1)
    below = TEXT + 8 + TEXT + 4
    count = len(words) + 1
    columns = min(count, ACROSS)
    rows = -(-count // columns)
    head = GAP + TITLE + len(lines) * (TEXT + 8) + GAP
    room = max(columns * (wide + GAP) + GAP, 420)
    sheet = Image.new("RGB", (room, head + rows * (tall + below + GAP)), "white")
    pen = ImageDraw.Draw(sheet)
    large, small = ImageFont.load_default(TITLE), ImageFont.load_default(TEXT)
    pen.text((GAP, GAP), fitted(title, TITLE, room - 2 * GAP), INK, large)
    for turn, line in enumerate(lines):
        y = GAP + TITLE + 8 + turn * (TEXT + 8)
        pen.text((GAP, y), fitted(line, TEXT, room - 2 * GAP), PALE, small)
    for number, word in enumerate([WordPicture("", photo, "the photo"), *words]):
        left = GAP + number % columns * (wide + GAP)
        top = head + number // columns * (tall + below + GAP)
        way = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
        tile = cv2.resize(word.picture, (wide, tall), interpolation=way)
        sheet.paste(Image.fromarray(tile.astype(np.uint8)), (left, top))
        pen.text((left, top + tall + 4), fitted(word.text, TEXT, wide), INK, small)
        line_top = top + tall + (TEXT + 8 if word.text else 4)
        pen.text(
            (left, line_top),
            fitted(word.line, TEXT - 2, wide),
            PALE,
            ImageFont.load_default(TEXT - 2),
        )
    return np.asarray(sheet)
