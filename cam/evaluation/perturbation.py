"""Infidelity and sensitivity: the map under changes of the image.

Yeh et al., "On the (In)fidelity and Sensitivity of Explanations", NeurIPS 2019.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cam.drawing.placement import resize
from cam.errors import CamError, MethodUnsuited
from cam.evaluation.metrics import SQUARE
from cam.evaluation.scorer import Forwards, Judged, Scorer

Found = tuple[float | None, dict[str, float | tuple[float, ...] | None]]


def sensitivity(scorer: Scorer, judged: Judged) -> Forwards[Found]:
    """Return the greatest ‖m − m′‖ / ‖m‖ over noisy images, ≥ 0 (definition 3, by sampling).

    The noise of each number is uniform in ± radius, as in captum, which divides by the norm, too.
    There is no value for a map of zeros.
    """
    if judged.again is None:
        raise MethodUnsuited("the map of another image cannot be made")
    options, image = scorer.options, scorer.image
    norm = float(np.linalg.norm(judged.small))
    if options.scale_free and not norm:
        return None, {}
    generator = torch.Generator().manual_seed(options.seed)
    changes: list[float] = []
    while len(changes) < options.samples:  # all noisy images at once may not fit the memory
        count = min(scorer.chunk, options.samples - len(changes))
        noise = torch.stack([torch.rand(image.shape, generator=generator) for _ in range(count)])
        images = image[None] + ((2 * noise - 1) * options.radius).to(image)
        for map_ in (yield from judged.again(images, [scorer.target] * count)):
            if isinstance(map_, CamError):
                raise map_
            other = resize(map_, *judged.small.shape)
            changes.append(float(np.linalg.norm(judged.small - other)))
    scale = norm if options.scale_free else 1.0
    return max(changes) / scale, {"changes": tuple(change / scale for change in changes)}


def infidelity(scorer: Scorer, judged: Judged) -> Forwards[Found]:
    """Return the mean of (Σ heat in a square − loss of probability)², ≥ 0 (definition 1 with
    "square removal", section 3.1).

    The paper's perturbation is the image inside the square. A map's heat is what a pixel adds to
    the score, and not a gradient, so it is summed as it is. If the value is scale-free, the heat is
    multiplied by β = Σ heat · loss / Σ heat², the least squares' factor, as in captum with
    normalize=True.
    """
    options = scorer.options
    inside = squares(options.squares, *scorer.size, scorer.rng())
    blank = torch.from_numpy(inside).to(scorer.image.device)

    def make(some: slice) -> Tensor:
        return scorer.image * ~blank[some, None]

    def work() -> Forwards[list[float]]:
        return scorer.probabilities(len(inside), make)

    left = yield from scorer.remembered("squares", work)
    losses = scorer.whole - np.array(left)
    heat = np.array([judged.values[square].sum(dtype=np.float64) for square in inside])
    return infidelity_of(heat, losses, scale_free=options.scale_free), {}


def infidelity_of(
    heat: NDArray[np.float64], losses: NDArray[np.float64], *, scale_free: bool
) -> float:
    """Return the mean squared difference of the heat (n,) and the losses (n,); if it is scale-free,
    with the heat multiplied by the factor that makes it least."""
    if scale_free:
        power = float(heat @ heat)
        heat = heat * (float(heat @ losses) / power if power else 0.0)
    return float(np.mean((heat - losses) ** 2))


def squares(count: int, height: int, width: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Return masks of random squares, bool (count, height, width)."""
    rows, columns = (max(round(SQUARE * size), 1) for size in (height, width))
    tops = rng.integers(0, height - rows + 1, count)
    lefts = rng.integers(0, width - columns + 1, count)
    masks = np.zeros((count, height, width), bool)
    for mask, top, left in zip(masks, tops, lefts, strict=True):
        mask[top : top + rows, left : left + columns] = True
    return masks
