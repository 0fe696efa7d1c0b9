"""Deletion and insertion: the probability while an image's pixels are exchanged, hottest first.

Petsiuk et al., "RISE: Randomized Input Sampling for Explanation of Black-box Models", BMVC 2018,
section 4.3, and the authors' code for what the paper does not say.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import conv2d

from cam.evaluation.metrics import Substrate, step_of
from cam.evaluation.scorer import Forwards, Judged, Scorer

BLUR_SIZE: Final = 11
BLUR_SIGMA: Final = 5.0
Curve = tuple[float, dict[str, tuple[float, ...]]]


def deletion(scorer: Scorer, judged: Judged) -> Forwards[Curve]:
    """Return the area under the probability while pixels of the image are removed, 0 … 1."""
    return (yield from _exchange(scorer, judged, None, scorer.options.deletion_to))


def insertion(scorer: Scorer, judged: Judged) -> Forwards[Curve]:
    """Return the area under the probability while pixels of the image come, 0 … 1."""
    return (yield from _exchange(scorer, judged, scorer.options.insertion_from, None))


def _exchange(
    scorer: Scorer, judged: Judged, start: Substrate | None, finish: Substrate | None
) -> Forwards[Curve]:
    """Exchange the pixels of one image for those of another; None is the image itself."""
    old, new = substrate(scorer.image, start), substrate(scorer.image, finish)
    rank = scorer.ranks(judged)
    step = step_of(scorer.options, rank.numel())
    count = -(-rank.numel() // step)

    def make(some: slice) -> Tensor:
        bounds = torch.arange(some.start + 1, some.stop + 1, device=rank.device) * step
        changed = rank[None] < bounds[:, None, None]
        return torch.where(changed[:, None], new, old)

    first = yield from _end(scorer, start)
    between = yield from scorer.probabilities(count - 1, make)
    last = yield from _end(scorer, finish)
    points = np.array([first, *between, last])
    area = (points.sum() - points[0] / 2 - points[-1] / 2) / count
    return float(area), {"curve": tuple(points.tolist())}


def _end(scorer: Scorer, what: Substrate | None) -> Forwards[float]:
    """Return the probability of the image in which no pixel or every pixel is exchanged."""
    if what is None:
        return scorer.whole
    end = substrate(scorer.image, what)[None]
    one = partial(scorer.probabilities, 1, lambda some: end)
    (probability,) = yield from scorer.remembered(("end", what), one)
    return probability


def substrate(image: Tensor, what: Substrate | None) -> Tensor:
    """Return the image that takes the place of `image` (C, H, W); the image itself for None."""
    if what is None:
        return image
    if what == "zero":
        return torch.zeros_like(image)
    if what == "mean":
        return image.mean((1, 2), keepdim=True).expand_as(image)
    kernel = torch.from_numpy(blur_kernel()).to(image)
    # Beyond the edge the authors' blur sees zeros.
    return conv2d(image[:, None], kernel[None, None], padding=BLUR_SIZE // 2)[:, 0]


def blur_kernel() -> NDArray[np.float64]:
    """Return the blur's kernel, (11, 11), with the sum 1.

    As the authors do, a point in a picture of 11 × 11 pixels is filtered. The filter reaches 4 σ =
    20 pixels far and reflects at the picture's edges, so that what lies outside the kernel is
    folded back into it.
    """
    from scipy.ndimage import gaussian_filter  # takes a while, and only these metrics need it

    point = np.zeros((BLUR_SIZE, BLUR_SIZE))
    point[BLUR_SIZE // 2, BLUR_SIZE // 2] = 1
    kernel: NDArray[np.float64] = gaussian_filter(point, BLUR_SIGMA)
    return kernel
