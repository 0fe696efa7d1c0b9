"""Methods that find the main pattern in the activations, or in gradient times activation.

Each takes activations A and gradients G = ∂y/∂A, float (n, K, h, w), and returns the maps, float32
(n, h, w), ≥ 0. Methods of a leading component return a `Component`. X is an image's activations as
a matrix: its rows are the h × w positions, its columns are the K channels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from cam.errors import GridTooLarge

MAX_POSITIONS = 1024
"""Maximum number of positions for kernel methods, which compare every position with every other."""
EVEN: Final = 1e-6
"""Largest difference of the two extremes of a projection, relative to their distance, that counts
as none: the rounding of float32 activations."""
LEAST_GAP: Final = {
    torch.float64: 2 * 2e-14 / 1e-3,
    torch.float32: 2 * 1e-5 / 1e-3,
    torch.float16: 2 * 4e-3 / 0.1,
    torch.bfloat16: 2 * 3e-2 / 0.1,
}
"""Precision of the activations → minimum relative gap (λ₁ − λ₂) / λ₁ of the two leading eigenvalues
of X Xᵀ at which rounding does not disturb the map. A change of X by ε turns the leading vector by
an angle whose sine is at most about 2 ε λ₁ / (λ₁ − λ₂) (Davis & Kahan, 1970), and changes the map
by the same share of its peak. In float32 the embedded model's activations and gradients have an ε
of up to 1e-5, and the map must be correct to 1e-3 of its peak. In float64, ε is smaller in
proportion to the precision. In bfloat16 the activations have an ε of 3e-2, in float16 an eighth of
that, and the map must be correct to 0.1 of its peak."""


class Component(NamedTuple):
    """The leading components of n images."""

    maps: Tensor
    """Projections on the leading components, float32 (n, h, w), ≥ 0."""
    ratio: Tensor
    """λ₂ / λ₁, the strength of the second component relative to the first, (n,), 0 … 1, on the CPU;
    0 where there is no second component."""


def eigencam(activations: Tensor, gradients: Tensor) -> Component:
    """map = relu(X v), v the first right singular vector of X.

    Muhammad & Yeasin, "Eigen-CAM", IJCNN 2020, section III. The sign of a singular vector is
    arbitrary; here it is the one that agrees with Σ_k A_k. pytorch-grad-cam centres the columns of
    X first and does not fix the sign, so the same photo may get an inverted map.
    """
    return projected(activations.float(), centred=False)


def eigengradcam(activations: Tensor, gradients: Tensor) -> Component:
    """map = relu(X v) with X of G ⊙ A, its columns centred, v its first right singular vector.

    pytorch-grad-cam's EigenGradCAM, except for the sign, which pytorch-grad-cam does not fix: here
    it is the one that agrees with Σ_k G_k ⊙ A_k.
    """
    return projected(gradients.float() * activations.float(), centred=True)


def segeigencam(activations: Tensor, gradients: Tensor) -> Component:
    """map = relu(X v) with X of |G| ⊙ A, its columns centred, v its first right singular vector,
    of the sign for which max X v ≥ −min X v.

    Chung & Ying, "Seg-Eigen-CAM: Eigen-Value-Based Visual Explanations for Semantic Segmentation
    Models", Applied Sciences 15 (13), 2025, equations 10 to 13, as in pytorch-grad-cam 1.5.7.
    Where both sides are equally high, as with two positions, the code leaves the sign to chance;
    here it is the one that agrees with Σ_k |G_k| ⊙ A_k.
    """
    return projected(gradients.float().abs() * activations.float(), peaked=True)


def kpcacam(activations: Tensor, gradients: Tensor) -> Component:
    """map = relu(√λ u), λ and u the first eigenvalue and eigenvector of the centred kernel matrix
    of X's rows, κ(x, y) = tanh(x·y / K + 1), the columns of X centred.

    Karmani et al., "KPCA-CAM", 2024, as in its authors' code in pytorch-grad-cam, except for the
    sign, which that code does not fix: here it is the one that agrees with Σ_k A_k.

    Raises:
        GridTooLarge: if the layer has more than MAX_POSITIONS positions.
    """
    a = activations.float()
    n, channels, height, width = a.shape
    if height * width > MAX_POSITIONS:
        raise GridTooLarge(
            f"kpcacam compares {height} × {width} positions with each other; at most "
            f"{MAX_POSITIONS} are allowed: name a deeper layer"
        )
    x = a.flatten(2).transpose(1, 2).double().cpu()
    total = x.sum(2)
    x = x - x.mean(1, keepdim=True)
    kernel = torch.tanh(x @ x.transpose(1, 2) / channels + 1)
    kernel = kernel - kernel.mean(1, keepdim=True)
    kernel = kernel - kernel.mean(2, keepdim=True)
    values, vectors = torch.linalg.eigh(kernel)
    projection = vectors[..., -1] * values[:, -1:].clamp(min=0).sqrt()
    maps = _signed(projection, _agreement(projection, total)).view(n, height, width).to(a)
    return Component(maps, _ratio(values))


def fem(activations: Tensor, gradients: Tensor) -> Tensor:
    """map = relu(Σ_k μ_k [A_k ≥ μ_k + 2 σ_k]), μ and σ the mean and standard deviation over
    positions.

    Fuad et al., "Features Understanding in 3D CNNs", IPTA 2020. pytorch-grad-cam weights the
    activations by each channel's share of positions above the threshold instead. The layer needs
    five positions or more: with fewer, no position can be two standard deviations above the mean.
    """
    a = activations.float()
    mean = a.mean(dim=(2, 3), keepdim=True)
    deviation = a.std(dim=(2, 3), correction=0, keepdim=True)
    strong = (a >= mean + 2 * deviation) & (deviation > 0)
    return (mean * strong).sum(dim=1).relu()


def projected(features: Tensor, *, centred: bool = True, peaked: bool = False) -> Component:
    """Project features (n, K, h, w) on the first right singular vector of X: maps (n, h, w), ≥ 0.

    X is the matrix of one image's features; with `centred`, its columns are centred first. The sign
    is the one that agrees with the rows' sums; with `peaked`, the one of the greater extreme.
    """
    n, _, height, width = features.shape
    # In double precision, the eigenvectors of the smaller Gram matrix are accurate enough, and
    # cheaper than a singular value decomposition of X.
    x = features.flatten(2).transpose(1, 2).double().cpu()
    if centred:
        x = x - x.mean(1, keepdim=True)
    if x.shape[1] <= x.shape[2]:
        values, vectors = torch.linalg.eigh(x @ x.transpose(1, 2))
        projection = vectors[..., -1] * values[:, -1:].clamp(min=0).sqrt()
    else:
        values, vectors = torch.linalg.eigh(x.transpose(1, 2) @ x)
        projection = (x @ vectors[..., -1:]).squeeze(2)
    agreement = _agreement(projection, x.sum(2))
    if peaked:
        high, low = projection.amax(1, keepdim=True), projection.amin(1, keepdim=True)
        agreement = torch.where((high + low).abs() > EVEN * (high - low), high + low, agreement)
    maps = _signed(projection, agreement).view(n, height, width).to(features)
    return Component(maps, _ratio(values))


def _ratio(values: Tensor) -> Tensor:
    """Return λ₂ / λ₁, (n,), of eigenvalues (n, m) in ascending order."""
    first = values[:, -1]
    if values.shape[1] < 2:
        return torch.zeros_like(first)
    return torch.where(first > 0, values[:, -2].clamp(min=0) / first, 0)


def _agreement(projection: Tensor, like: Tensor) -> Tensor:
    """Return how well the projection agrees with `like`, both (n, positions): (n, 1), below 0 if
    its negative agrees."""
    return (projection * like).sum(1, keepdim=True)


def _signed(projection: Tensor, agreement: Tensor) -> Tensor:
    """Return the relu of the projection (n, positions), or of its negative where `agreement`,
    (n, 1), is below 0."""
    return torch.where(agreement < 0, -projection, projection).relu()
