"""RefineCAM: the product of the maps of several layers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cam.drawing.heatmap import minmax
from cam.drawing.placement import resize


def refined(maps: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """map = n(Π_l n(U(M_l))), M_l = relu(Σ_k W_k ⊙ A_k) at layer l with the W of Grad-CAM++, U
    resizing to the finest of the layers and n scaling to 0 … 1 by the minimum and maximum.

    Domeniconi et al., "How to Evaluate and Refine your CAM", 2026 (arXiv 2605.14641), as in
    `RefineCAM` of pytorch-grad-cam 1.5.7, with which the authors' own example is made. It resizes
    to the image instead, and adds 1e-7 to each maximum. A layer whose map is constant makes the
    product zero, there and here.

    Args:
        maps: layer → its map, float32 (h, w), ≥ 0; at least one.

    Returns:
        float32 (h, w), 0 … 1, of the size of the finest layer.
    """
    height, width = max(
        (map_.shape for map_ in maps.values()), key=lambda shape: shape[0] * shape[1]
    )
    product = np.ones((height, width), np.float32)
    for map_ in maps.values():
        product *= minmax(resize(map_, height, width))
    return minmax(product)
