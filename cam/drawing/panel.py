"""Draw figures for reports: photo and explanation side by side, with a colour bar and captions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cam.drawing.overlay import DISTINCT, Picture, colorize

LONGEST = 480
"""Largest length of a photo's longer side in the figure, in pixels."""
GAP = 16
BAR = 14
SHORTEST_BAR = 80
"""Smallest height of a colour bar, in pixels."""
INK, PALE = (32, 33, 36), (95, 99, 104)
TITLE, TEXT = 20, 14


def panel(
    photo: Picture | None,
    shown: Picture,
    *,
    title: str,
    lines: Sequence[str],
    colormap: str | None,
    ends: tuple[str, str],
) -> Picture:
    """Draw a photo, if there is one, and its explanation side by side, with a colour bar at the
    right and text below.

    Args:
        photo, shown: RGB uint8 (H, W, 3), both of the same size.
        title: the text in large letters. Text that does not fit is cut off with an ellipsis.
        lines: the lines below the title, in small letters.
        colormap: the colour map of the colour bar; None leaves the bar out.
        ends: the captions of the colour bar's top and bottom.

    Returns:
        RGB uint8 (H', W', 3) on white.
    """
    pictures = [shown] if photo is None else [photo, shown]
    height, width = shown.shape[:2]
    factor = min(LONGEST / max(height, width), max(1.0, LONGEST / 2 / max(height, width)))
    tall, wide = max(round(height * factor), 1), max(round(width * factor), 1)
    small = ImageFont.load_default(TEXT)
    margin = bar_width(ends) if colormap else 0
    left = len(pictures) * (wide + GAP) + GAP
    total = left + margin
    below = GAP + TITLE + len(lines) * (TEXT + 8) + GAP
    sheet = Image.new("RGB", (max(total, 420), GAP + max(tall, SHORTEST_BAR) + below), "white")
    for turn, picture in enumerate(pictures):
        way = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
        scaled = cv2.resize(picture, (wide, tall), interpolation=way)
        sheet.paste(Image.fromarray(scaled), (GAP + turn * (wide + GAP), GAP))
    if colormap:
        draw_bar(sheet, (left, GAP), tall, colormap, ends)
    draw = ImageDraw.Draw(sheet)
    top = 2 * GAP + max(tall, SHORTEST_BAR)
    room = sheet.width - 2 * GAP
    draw.text((GAP, top), fitted(title, TITLE, room), INK, ImageFont.load_default(TITLE))
    for turn, line in enumerate(lines):
        y = top + TITLE + 8 + turn * (TEXT + 8)
        draw.text((GAP, y), fitted(line, TEXT, room), PALE, small)
    return np.asarray(sheet)


def bar_width(ends: tuple[str, str]) -> int:
    """Return the width of a colour bar with these captions, and with the space around it."""
    small = ImageFont.load_default(TEXT)
    return math.ceil(max(small.getlength(end) for end in ends)) + 2 * GAP + BAR


def draw_bar(
    sheet: Image.Image,
    corner: tuple[int, int],
    height: int,
    colormap: str,
    ends: tuple[str, str],
) -> None:
    """Draw a colour bar, at least `SHORTEST_BAR` high, with the captions of its top and bottom."""
    (left, top), height = corner, max(height, SHORTEST_BAR)
    ramp = np.linspace(1, 0, height, dtype=np.float32)[:, None].repeat(BAR, 1)
    sheet.paste(Image.fromarray(colorize(ramp, colormap)), corner)
    draw, small = ImageDraw.Draw(sheet), ImageFont.load_default(TEXT)
    draw.text((left + BAR + 6, top), ends[0], INK, small)
    draw.text((left + BAR + 6, top + height), ends[1], INK, small, anchor="ld")


def legend(picture: Picture, names: Sequence[str]) -> Picture:
    """Return the picture with a legend below it: one line for each concept, with its colour."""
    row, gap = 24, 8
    height, width = picture.shape[:2]
    sheet = Image.new("RGB", (max(width, 320), height + gap + row * len(names)), "white")
    sheet.paste(Image.fromarray(picture))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for turn, name in enumerate(names):
        top = height + gap + turn * row
        draw.rectangle((gap, top + 2, gap + 14, top + 16), DISTINCT[turn % len(DISTINCT)])
        draw.text((gap + 22, top), name, (32, 33, 36), font)
    return np.asarray(sheet)


def fitted(text: str, size: int, room: int) -> str:
    """Return a text, with an ellipsis for what is wider than `room` pixels in letters of `size`."""
    font = ImageFont.load_default(size)
    if font.getlength(text) <= room:
        return text
    while text and font.getlength(text + "…") > room:
        text = text[:-1]
    return text + "…"
