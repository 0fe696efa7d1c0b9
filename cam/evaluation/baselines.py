"""Maps that know nothing of the photo or of the model. A map that scores no better than these says
nothing."""

from __future__ import annotations

import math
from typing import Final

import cv2
import numpy as np

from cam.evaluation.metrics import Baseline
from cam.explanation import Map

SPREAD: Final = 0.25
"""σ of the centred Gaussian, as a share of the height and of the width."""


def baseline(name: Baseline, image: Map) -> Map:
    """Return a map that does not look at the model.

    `gaussian` is a Gaussian around the centre, because objects are mostly in the middle of a photo;
    `edges` is the magnitude of the Sobel gradient of the image's brightness (an edge detector looks
    like an explanation: Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS 2018); `uniform`
    is the same everywhere.

    Args:
        name: `gaussian`, `edges` or `uniform`.
        image: float32 (C, H, W), preprocessed.

    Returns:
        float32 (H, W).
    """
    height, width = image.shape[-2:]
    if name == "uniform":
        return np.ones((height, width), np.float32)
    if name == "gaussian":
        y, x = (((np.arange(size) + 0.5) / size - 0.5) / SPREAD for size in (height, width))
        around: Map = np.exp(-(y[:, None] ** 2 + x[None] ** 2) / 2).astype(np.float32)
        return around
    bright = np.ascontiguousarray(image.mean(0, dtype=np.float32))
    down, along = cv2.Sobel(bright, cv2.CV_32F, 0, 1), cv2.Sobel(bright, cv2.CV_32F, 1, 0)
    edges: Map = np.hypot(down, along).astype(np.float32)
    return edges


def misplaced(values: Map, turn: int, count: int) -> Map:
    """Return a map turned about the centre of the image, or mirrored and turned: what a map that
    knows nothing of this photo could as well be.

    A map is heat in one piece, mostly near the centre, as objects are. So maps of noise do not show
    what chance gives: by the share of the heat on the object, the map of another photo beats or
    loses to nearly all of noise. Turned maps have the same heat in the same pieces at the same
    distances from the centre. The map and its `count` turned ones are the orbit of a group:
    rotations by 360° ÷ (count + 1), or half as many and their mirror images if count + 1 is even.
    So the rank of a map whose direction from the centre has nothing to do with the photo is every
    one of count + 1 with the same probability.

    The sides of the image count as equally long, and what leaves the image at one edge comes in at
    the opposite one.

    Args:
        values: float32 (H, W), at the size of the image.
        turn: which of the turned maps, 1 … count.

    Returns:
        float32 (H, W).
    """
    order = count + 1
    mirrored = order % 2 == 0 and turn >= order // 2
    rotations = order // 2 if order % 2 == 0 else order
    return turned(values, 2 * math.pi * (turn % rotations) / rotations, mirrored=mirrored)


def reflections(count: int) -> tuple[int, ...]:
    """Return which of `count` misplaced maps are the mirror image, the map upside down, and the map
    turned by half a circle, as turns; none where the orbit does not have all three.

    Objects are often near one of the image's axes, so the map of another photo, or a mirror image,
    lies nearly right more often than its rank tells. It does not lie better than all of these.
    """
    rotations = (count + 1) // 2
    if (count + 1) % 4:
        return ()
    return rotations // 2, rotations, rotations + rotations // 2


def turned(values: Map, angle: float, *, mirrored: bool) -> Map:
    """Return a map (H, W) turned about its centre by an angle in radians, and mirrored first, as
    `misplaced` describes."""
    height, width = values.shape
    cosine, sine = math.cos(angle), math.sin(angle)
    sign = -1.0 if mirrored else 1.0
    # Of each pixel of the result, the place where it comes from, about the centre.
    turn = np.array(
        [[sign * cosine, sign * sine * width / height], [-sine * height / width, cosine]]
    )
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    moved = cv2.warpAffine(
        np.ascontiguousarray(values),
        np.column_stack([turn, centre - turn @ centre]),
        (width, height),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_WRAP,
    )
    return moved.astype(np.float32)
