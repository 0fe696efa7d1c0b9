"""Noisy linear imputation: removed pixels become means of their neighbours, plus noise.

Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", ICML 2022,
section 4.2. Each removed pixel is the weighted mean of its eight neighbours, of which a direct one
has the weight 1/6 and a diagonal one 1/12; at the image's edge the weights of the missing
neighbours are left out. The authors solve this sparse system directly. Here it is solved for many
masks at once, on the model's device, by conjugate gradients with a multigrid preconditioner.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d

NOISE: Final = 0.01
"""Standard deviation of the noise, in units of the preprocessed image, as the authors have it."""
TOLERANCE: Final = 1e-6
"""Residual, as a share of the right-hand side, at which a system is solved."""
MOST_ITERATIONS: Final = 60
SMOOTHING: Final = 2
"""Steps of the damped Jacobi method before and after the correction by the coarser grid."""
DAMPING: Final = 0.85
COARSEST: Final = 4
"""Height or width at which there is no coarser grid."""
STEPS_AT_COARSEST: Final = 8
AT_ONCE: Final = 4
"""Number of masks that are solved together on a CPU, whose caches hold no more."""


def impute(image: Tensor, removed: Tensor, noise: Tensor | None = None) -> Tensor:
    """Replace removed pixels by what their neighbours tell.

    Args:
        image: float (C, H, W).
        removed: bool (n, H, W): the pixels to replace. A mask that removes all pixels leaves
            nothing to tell, and gives zeros.
        noise: (n, C, H, W), is added to the pixels that are replaced.

    Returns:
        float32 (n, C, H, W).
    """
    at_once = AT_ONCE if image.device.type == "cpu" else len(removed)
    pieces = []
    for some in torch.split(removed, at_once):
        free = some[:, None].float()
        known = image.float() * (1 - free)
        pieces.append(known + _solved(_levels(free), free * _neighbours(known)))
    found = torch.cat(pieces)
    return found if noise is None else found + noise * removed[:, None]


def _neighbours(values: Tensor) -> Tensor:
    """Return the weighted sum of each pixel's eight neighbours, those beyond the edge being 0."""
    # [1 2 1] along both axes weighs direct neighbours by 2, diagonal ones by 1, and itself by 4.
    rows = 2 * values
    rows[..., 1:, :] += values[..., :-1, :]
    rows[..., :-1, :] += values[..., 1:, :]
    total = 2 * rows
    total[..., 1:] += rows[..., :-1]
    total[..., :-1] += rows[..., 1:]
    return total.sub_(values, alpha=4).div_(12)


def _levels(free: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return, for each grid from the finest, the mask of the free pixels (n, 1, h, w), and the sum
    of the weights of each pixel's neighbours (h, w)."""
    levels = []
    while True:
        levels.append((free, _neighbours(torch.ones_like(free[:1]))))
        if min(free.shape[-2:]) <= COARSEST:
            return levels
        # A coarse pixel is free if all the fine ones are that it covers.
        free = -max_pool2d(-free, 2, ceil_mode=True)


def _solved(levels: list[tuple[Tensor, Tensor]], right: Tensor) -> Tensor:
    """Solve (D - W) x = right on the free pixels by flexible conjugate gradients. Each plane of
    `right` (n, C, H, W) is a system of its own."""
    free, sums = levels[0]
    found = torch.zeros_like(right)
    residual = last = right
    enough = TOLERANCE * right.square().sum((2, 3), keepdim=True).sqrt()
    direction = torch.zeros_like(right)
    before = torch.ones_like(enough)
    for turn in range(MOST_ITERATIONS):
        # A plane that is solved stands still: rounding alone would drive it away again.
        unsolved = residual.square().sum((2, 3), keepdim=True).sqrt() > enough
        if not bool(unsolved.any()):
            break
        corrected = _cycle(levels, residual, 0)
        now = (residual * corrected).sum((2, 3), keepdim=True)
        # Polak and Ribière's formula: the preconditioner is not symmetric.
        change = now if not turn else now - (last * corrected).sum((2, 3), keepdim=True)
        ratio = torch.where(unsolved & (before != 0), change / before, 0.0) if turn else 0.0
        direction = corrected + ratio * direction
        product = free * (sums * direction - _neighbours(direction))
        curvature = (direction * product).sum((2, 3), keepdim=True)
        step = torch.where(unsolved & (curvature > 0), now / curvature, 0.0)
        found = found + step * direction
        last, before = residual, now
        residual = residual - step * product
    return found


def _cycle(levels: list[tuple[Tensor, Tensor]], right: Tensor, level: int) -> Tensor:
    """Return an approximate solution at one grid: a V-cycle of multigrid."""
    free, sums = levels[level]
    weight = free * DAMPING / sums
    found = weight * right
    if level + 1 == len(levels):
        return _smoothed(found, right, sums, weight, STEPS_AT_COARSEST)
    found = _smoothed(found, right, sums, weight, SMOOTHING - 1)
    # With the same weights on a grid of twice the distance, the operator is four times as large.
    rest = avg_pool2d(free * _rest(found, right, sums), 2, ceil_mode=True)
    coarse = _cycle(levels, 4 * levels[level + 1][0] * rest, level + 1)
    finer = interpolate(coarse, scale_factor=2, mode="bilinear")
    found.addcmul_(free, finer[..., : free.shape[-2], : free.shape[-1]])
    return _smoothed(found, right, sums, weight, SMOOTHING)


def _smoothed(found: Tensor, right: Tensor, sums: Tensor, weight: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        found = found.addcmul_(weight, _rest(found, right, sums))
    return found


def _rest(found: Tensor, right: Tensor, sums: Tensor) -> Tensor:
    """Return the residual of the systems, also at the pixels that are not free."""
    return _neighbours(found).addcmul_(sums, found, value=-1).add_(right)
