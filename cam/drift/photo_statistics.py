"""What a photo is like, in eight numbers that are compared over time.

A map may stay as it is while the photo turns blue or dark. What the model sees of a photo tells it.
"""

from __future__ import annotations

import math
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

APART: Final = 4
"""Number of pixels between those whose difference `sharpness` compares with adjoining ones."""
PARTS: Final = 12
"""Number of parts of a side whose sharpness `softest` looks at."""
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
    "softest",
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
    - `softest`: the sharpness that a tenth of the `PARTS` × `PARTS` parts of the photo do not
      reach: smears on a lens make some parts soft, and leave the sharpness of the whole.

    224 × 224 pixels take 1 ms.

    Args:
        pixels: what the model saw of the photo, uint8 (H, W, 3).

    Returns:
        Name of `PHOTO_STATISTICS` → value. The sharpness is None for a photo of one colour, or one
        that is at most `APART` pixels high or wide; so is the softest part's, also of a photo whose
        parts would be smaller than that.
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
        "softest": None,
    }
    if min(pixels.shape[:2]) <= APART:
        return found
    near, far = _differences(bright, 1), _differences(bright, APART)
    if strength := sum(float(each.mean()) for each in far):
        found["sharpness"] = min(sum(float(each.mean()) for each in near) / strength, 1.0)
    if min(pixels.shape[:2]) > APART * PARTS:
        parts, of = (_parts(across) + _parts(down) for across, down in (near, far))
        if (detailed := of > 0).any():
            sharpness = np.minimum(parts[detailed] / of[detailed], 1.0)
            found["softest"] = float(np.quantile(sharpness, 0.1))
    return found


def _parts(differences: NDArray[np.int16]) -> NDArray[np.float32]:
    """Return the means of `PARTS` × `PARTS` parts."""
    parts = np.empty((PARTS, PARTS), np.float32)
    cv2.resize(differences.astype(np.float32), (PARTS, PARTS), parts, interpolation=cv2.INTER_AREA)
    return parts


def _differences(
    bright: NDArray[np.int16], apart: int
) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    """Return the absolute differences of pixels so far apart in a row and in a column."""
    return np.abs(bright[:, apart:] - bright[:, :-apart]), np.abs(bright[apart:] - bright[:-apart])
