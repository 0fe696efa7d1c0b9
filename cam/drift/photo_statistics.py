"""What a photo is like, in nine numbers that are compared over time.

A map may stay as it is while the photo turns blue or dark. What the model sees of a photo tells it.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

APART: Final = 4
"""Number of pixels between those whose difference `sharpness` compares with adjoining ones."""
LEVELS: Final = 64
"""Number of levels of brightness whose shares `variety` looks at."""
PHOTO_STATISTICS: Final = (
    "sharpness",
    "brightness",
    "contrast",
    "red",
    "blue",
    "colourfulness",
    "variety",
    "detail_x",
    "detail_y",
)
"""Names of the statistics of a photo: see `photo_statistics`."""


def photo_statistics(pixels: NDArray[np.uint8]) -> dict[str, float | None]:
    """Return the statistics of a photo, each 0 … 1.

    - `sharpness`: mean difference between adjoining pixels, divided by that between pixels `APART`
      apart: about 1 ÷ `APART` for a blurred photo, 1 for noise. Brightness and contrast cancel out.
    - `brightness`: mean of (R + G + B) ÷ 3, of 255; `contrast`: its standard deviation, of 127.5.
    - `red`, `blue`: share of the channel in the sum of all three: a third of a grey photo, and of a
      black one. A cast of colour moves them, and channels in another order exchange them.
    - `colourfulness`: mean of the greatest channel less the smallest one, of 255.
    - `variety`: Shannon's entropy of the brightness in `LEVELS` levels, as a share of the largest.
    - `detail_x`, `detail_y`: mean column and row of the differences between adjoining pixels, as
      shares of the width and the height: dirt on one side of a lens moves them.

    224 × 224 pixels take 0.8 ms.

    Args:
        pixels: what the model saw of the photo, uint8 (H, W, 3).

    Returns:
        Name of `PHOTO_STATISTICS` → value. The sharpness and the place of the detail are None for a
        photo of one colour, or one that is at most `APART` pixels high or wide.
    """
    totals = pixels.sum((0, 1), dtype=np.int64).astype(np.float64)
    total = float(totals.sum())
    bright = pixels.sum(2, dtype=np.int16)
    level = bright.ravel().astype(np.int32) * LEVELS // 766
    levels = np.bincount(level, minlength=LEVELS) / bright.size
    used = levels[levels > 0]
    # The greatest less the smallest channel, pixel by pixel: three times as fast as `ptp`.
    first, second, third = (pixels[..., channel] for channel in range(3))
    most = np.maximum(np.maximum(first, second), third)
    least = np.minimum(np.minimum(first, second), third)
    found: dict[str, float | None] = {
        "sharpness": None,
        "brightness": total / (765 * bright.size),
        "contrast": min(float(bright.std(dtype=np.float64)) / 382.5, 1.0),
        "red": float(totals[0]) / total if total else 1 / 3,
        "blue": float(totals[2]) / total if total else 1 / 3,
        "colourfulness": float((most - least).mean(dtype=np.float64)) / 255,
        "variety": max(-float(used @ np.log(used)) / math.log(LEVELS), 0.0),
        "detail_x": None,
        "detail_y": None,
    }
    if min(pixels.shape[:2]) <= APART:
        return found
    across, down = _differences(bright, 1)
    far = sum(float(differences.mean()) for differences in _differences(bright, APART))
    detail = across[:-1] + down[:, :-1]
    if far and (strength := float(detail.sum(dtype=np.int64))):
        height, width = detail.shape
        found["sharpness"] = min(float(across.mean() + down.mean()) / far, 1.0)
        columns, rows = detail.sum(0, dtype=np.int64), detail.sum(1, dtype=np.int64)
        found["detail_x"] = float(columns @ (np.arange(width) + 0.5)) / (strength * width)
        found["detail_y"] = float(rows @ (np.arange(height) + 0.5)) / (strength * height)
    return found


def _differences(
    bright: NDArray[np.int16], apart: int
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Return the absolute differences of pixels so far apart in a row and in a column."""
    return np.abs(bright[:, apart:] - bright[:, :-apart]), np.abs(bright[apart:] - bright[:-apart])
