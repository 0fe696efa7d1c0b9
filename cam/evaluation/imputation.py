"""Noisy linear imputation: removed pixels become means of their neighbours, plus noise.

Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", ICML 2022,
section 4.2. Each removed pixel is the weighted mean of its eight neighbours: a direct neighbour has
the weight 1/6, a diagonal one 1/12; at the image's edge the weights of the missing neighbours are
left out. The authors solve this sparse system directly. Here it is solved by
conjugate gradients with a multigrid preconditioner, one mask in each thread, on the CPU: filters of
three pixels over one image stay in its caches and take a fifth of the time of tensor operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Planes = NDArray[np.float32]
"""Float32 (h, w, c): the channels of an image. Each channel is a separate system of equations."""

NOISE: Final = 0.01
"""Standard deviation of the noise, in units of the preprocessed image, as the authors have it."""
TOLERANCE: Final = 1e-7
"""Residual, as a share of the right-hand side, at which a system is solved."""
STALLED: Final = 1e-5
"""Residual below which a step that does not make it smaller is the last one: rounding is left."""
MOST_ITERATIONS: Final = 60
STEPS_AFTER: Final = 2
"""Steps of Jacobi's method after the correction by the coarser grid; there is one before it."""
COARSEST: Final = 64
"""Number of pixels of a grid whose system is solved directly."""
CHANNELS: Final = 4
"""Maximum number of channels that OpenCV's scaling takes at once."""
KERNEL: Final = np.array([1, 2, 1], np.float32)
"""Along both axes, it weighs direct neighbours by 2, diagonal ones by 1 and the pixel itself by 4.
The equations are multiplied by 12 so that all sums of weights are exact: a rounding error that is
the same at all pixels would add up over a large region."""
ITSELF: Final = np.float32(4)


def impute(image: Tensor, removed: Tensor) -> Tensor:
    """Replace removed pixels by what their neighbours tell.

    Args:
        image: float (C, H, W).
        removed: bool (n, H, W): the pixels to replace. A mask that removes all pixels leaves
            nothing to tell, and gives zeros.

    Returns:
        float32 (n, C, H, W), on the image's device.
    """
    planes = image.detach().float().cpu().permute(1, 2, 0).numpy()
    parts = [
        np.ascontiguousarray(planes[..., start : start + CHANNELS])
        for start in range(0, planes.shape[-1], CHANNELS)
    ]

    def one(mask: NDArray[np.bool_]) -> Planes:
        return np.concatenate([_imputed(part, mask) for part in parts], -1)

    masks = removed.cpu().numpy()
    with ThreadPoolExecutor(min(len(masks), torch.get_num_threads())) as threads:
        filled = torch.from_numpy(np.stack(list(threads.map(one, masks))))
    return filled.permute(0, 3, 1, 2).contiguous().to(image.device)


def _imputed(planes: Planes, mask: NDArray[np.bool_]) -> Planes:
    free = np.repeat(mask[..., None], planes.shape[-1], -1).astype(np.float32)
    known = planes * (1 - free)
    if mask.all():
        return known
    right = _with_neighbours(known)
    right *= free  # the pixel itself counts nothing, because it is not known
    known += _solved(_grids(free), right)
    return known


def _with_neighbours(values: Planes, out: Planes | None = None) -> Planes:
    """Return the weighted sum of each pixel's eight neighbours and of itself; those beyond the edge
    are 0."""
    border = cv2.BORDER_CONSTANT
    return _planes(cv2.sepFilter2D(values, -1, KERNEL, KERNEL, dst=out, borderType=border))


def _planes(planes: Any) -> Planes:
    """Return OpenCV's result with its channels: it leaves out a single one."""
    values: Planes = planes
    return values if values.ndim == 3 else values[..., None]


class _Grid:
    """The system (D − W) x = right of one grid, on the pixels that are free.

    Args:
        free: (h, w, c), 1 for the pixels that are free and 0 for the others.
    """

    def __init__(self, free: Planes) -> None:
        self.free = free
        self.diagonal = _with_neighbours(np.ones_like(free))
        """Sum of the weights of each pixel's neighbours, and its own, which `_with_neighbours`
        counts as well."""
        self.weight = free / (self.diagonal - ITSELF)
        self._product = np.empty_like(free)
        self._found, self._rest = np.empty_like(free), np.empty_like(free)

    def apply(self, values: Planes, out: Planes) -> Planes:
        """Return (D − W) times the values, also at the pixels that are not free."""
        _with_neighbours(values, out)
        np.multiply(self.diagonal, values, out=self._product)
        return np.subtract(self._product, out, out=out)

    def start(self, right: Planes) -> Planes:
        """Return the first step of Jacobi's method from zero. The array is the grid's own."""
        return np.multiply(self.weight, right, out=self._found)

    def improve(self, solution: Planes, right: Planes) -> None:
        """Make one step of Jacobi's method in place. It needs no damping: with these weights, it
        leaves at most a third of each error that changes its sign within two pixels."""
        rest = self.apply(solution, self._rest)
        np.subtract(right, rest, out=rest)
        rest *= self.weight
        solution += rest

    def rest(self, solution: Planes, right: Planes) -> Planes:
        """Return the residual at the free pixels, as the coarser grid has it."""
        rest = self.apply(solution, self._rest)
        np.subtract(right, rest, out=rest)
        rest *= self.free
        small = _halved(rest)
        # With these weights on a grid of twice the distance, the operator is four times as large.
        small *= 4
        return small

    def correct(self, solution: Planes, coarse: Planes) -> None:
        """Add the coarser grid's solution to the free pixels in place."""
        height, width = solution.shape[:2]
        size = (2 * coarse.shape[1], 2 * coarse.shape[0])
        fine = _planes(cv2.resize(coarse, size, interpolation=cv2.INTER_LINEAR))
        solution += np.multiply(fine[:height, :width], self.free, out=self._rest)


def _grids(free: Planes) -> tuple[list[_Grid], Planes]:
    """Return the grids from the finest to the coarsest, and the inverse of the coarsest one's
    system, (h × w, h × w)."""
    grids = [_Grid(free)]
    while free.shape[0] * free.shape[1] > COARSEST:
        # A coarse pixel is free if all the fine ones are that it covers.
        free = np.floor(_halved(free))
        grids.append(_Grid(free))
    loose = np.flatnonzero(free[..., 0])
    # 2 for the same row or column, 1 for the next one: KERNEL along both axes.
    rows, columns = (
        np.subtract.outer(indices, indices) for indices in np.divmod(loose, free.shape[1])
    )
    weights = np.maximum(2 - np.abs(rows), 0) * np.maximum(2 - np.abs(columns), 0)
    system = np.diag(grids[-1].diagonal[..., 0].flat[loose]) - weights
    inverse = np.zeros((free[..., 0].size, free[..., 0].size), np.float32)
    inverse[np.ix_(loose, loose)] = np.linalg.inv(system)
    return grids, inverse


def _halved(values: Planes) -> Planes:
    """Return means of 2 × 2 pixels; at an odd edge, of those that exist."""
    height, width = values.shape[:2]
    border = cv2.BORDER_REPLICATE
    values = _planes(cv2.copyMakeBorder(values, 0, height % 2, 0, width % 2, border))
    size = (values.shape[1] // 2, values.shape[0] // 2)
    return _planes(cv2.resize(values, size, interpolation=cv2.INTER_AREA))


def _solved(system: tuple[list[_Grid], Planes], right: Planes) -> Planes:
    """Solve (D − W) x = right on the free pixels by flexible conjugate gradients."""
    grid = system[0][0]
    solution = np.zeros_like(right)
    residual, last = right.copy(), np.empty_like(right)
    direction, product, step = np.zeros_like(right), np.empty_like(right), np.empty_like(right)
    whole = _dot(right, right)
    size, before = whole, 0.0
    for _ in range(MOST_ITERATIONS):
        smaller = _dot(residual, residual)
        if smaller <= TOLERANCE**2 * whole or size <= smaller <= STALLED**2 * whole:
            break
        size = smaller
        corrected = _cycle(*system, residual, 0)
        now = _dot(residual, corrected)
        # Polak and Ribière's formula: the preconditioner is not symmetric.
        direction *= (now - _dot(last, corrected)) / before if before else 0.0
        direction += corrected
        grid.apply(direction, product)
        product *= grid.free
        curvature = _dot(direction, product)
        if curvature <= 0:  # rounding alone is left
            break
        length = now / curvature
        solution += np.multiply(direction, length, out=step)
        last[:], before = residual, now
        residual -= np.multiply(product, length, out=step)
    return solution


def _dot(one: Planes, other: Planes) -> float:
    return float(np.einsum("hwc,hwc->", one, other))  # BLAS would start threads of its own


def _cycle(grids: Sequence[_Grid], inverse: Planes, right: Planes, level: int) -> Planes:
    """Return an approximate solution at one grid: a V-cycle of multigrid."""
    if level + 1 == len(grids):
        return (inverse @ right.reshape(-1, right.shape[-1])).reshape(right.shape)
    grid = grids[level]
    solution = grid.start(right)
    rest = grid.rest(solution, right)
    rest *= grids[level + 1].free
    grid.correct(solution, _cycle(grids, inverse, rest, level + 1))
    for _ in range(STEPS_AFTER):
        grid.improve(solution, right)
    return solution
