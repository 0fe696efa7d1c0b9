"""A sheet of several maps."""

from __future__ import annotations

import numpy as np
import pytest

from cam.drawing.overlay import colorize
from cam.drawing.panel import BAR, GAP, SHORTEST_BAR, TEXT, TITLE
from cam.drawing.sheet import CaptionedPicture, sheet_of


@pytest.mark.parametrize("shape", [(32, 320), (8, 320), (320, 320)])
def test_the_colour_bar_of_a_single_row_is_whole(shape: tuple[int, int]) -> None:
    photo = np.full((*shape, 3), 128, np.uint8)
    ends = ("high", "low")
    sheet = sheet_of(
        photo, [CaptionedPicture("cat", photo, "gradcam")], "one", [], bar=("turbo", ends)
    )
    top, left = GAP + TITLE + GAP, 2 * (160 + GAP) + GAP
    height = max(round(shape[0] / 2), SHORTEST_BAR)
    ramp = colorize(np.linspace(1, 0, height, dtype=np.float32)[:, None].repeat(BAR, 1), "turbo")
    assert (sheet[top : top + height, left : left + BAR] == ramp).all()
    caption = sheet[top + height - TEXT : top + height, left + BAR + 6 :]
    assert (caption < 128).any(), "the caption of the bottom"
    assert (sheet[top + height :, left:] == 255).all()
    assert sheet.shape[0] >= top + height + GAP
