"""Draw feature maps as a grid of tiles with their names."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import minmax
from cam.drawing.overlay import USUAL_GALLERY, Picture, colorize

CAPTION, GAP = 18, 6


def gallery(
    maps: Sequence[NDArray[np.float32]],
    names: Sequence[str],
    *,
    columns: int | None = None,
    side: int = 112,
    colormap: str = USUAL_GALLERY,
) -> Picture:
    """Draw maps (h, w) as tiles, each scaled to its own minimum and maximum; a constant map is
    drawn as all minimum.

    Args:
        maps: float32 (h, w) each, all of one size; at least one.
        names: the caption of each map.
        columns: the number of columns; by default about the number of rows.
        side: the length of a tile's longer side, in pixels.

    Returns:
        RGB uint8 (H, W, 3) on white.

    Raises:
        UnknownColormap: if there is no such colour map; the message lists those that exist.
    """
    columns = columns or max(int(np.ceil(np.sqrt(len(maps)))), 1)
    rows = -(-len(maps) // columns)
    height, width = maps[0].shape
    tall, wide = (max(round(side * length / max(height, width)), 1) for length in (height, width))
    cell_height, cell_width = tall + CAPTION + GAP, wide + GAP
    sheet = np.full((rows * cell_height + GAP, columns * cell_width + GAP, 3), 255, np.uint8)
    for number, (values, name) in enumerate(zip(maps, names, strict=True)):
        top = GAP + number // columns * cell_height
        left = GAP + number % columns * cell_width
        # No interpolation: the picture should show the layer's own cells, not values between them.
        tile = colorize(minmax(values), colormap)
        tile = cv2.resize(tile, (wide, tall), interpolation=cv2.INTER_NEAREST).astype(np.uint8)
        sheet[top : top + tall, left : left + wide] = tile
        corner = (left, top + tall + CAPTION - 6)
        font = cv2.FONT_HERSHEY_SIMPLEX
        cv2.putText(sheet, name, corner, font, 0.38, (40, 40, 40), 1, cv2.LINE_AA)
    return sheet
