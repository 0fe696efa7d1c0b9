"""Methods that weight activations by gradients: one pure function per paper.

Each takes activations A and gradients G = ∂y/∂A, float (n, K, h, w), and returns the weights W,
(n, K, 1, 1) or (n, K, h, w), in float32; then map = relu(Σ_k W_k ⊙ A_k). Sums over i, j and over
a, b run over the h × w positions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """W_k = 1/(hw) Σ_ij G_kij.

    Selvaraju et al., "Grad-CAM", ICCV 2017, equations 1 and 2.
    """
    return gradients.float().mean(dim=(2, 3), keepdim=True)


def gradcam_plusplus(activations: Tensor, gradients: Tensor) -> Tensor:
    """α_kij = G² / (2G² + G³ Σ_ab A_kab);  W_k = Σ_ij α_kij relu(G_kij).

    Chattopadhay et al., "Grad-CAM++", WACV 2018, equations 5 and 19, for Y = exp(y). The second
    and third derivatives of Y are then exp(y) G² and exp(y) G³. The common positive factor exp(y)
    is left out of W: it would overflow, and min-max normalisation removes it. G² cancels, so the
    code computes α = 1 / (2 + G Σ A), which is exact where G² or G³ would underflow. α = 0 where
    G = 0 or where the denominator is 0.

    Peers differ: pytorch-grad-cam 1.5.7 adds 1e-6 to the denominator, which outweighs 2G² as
    soon as |G| < 1e-3; torchcam 0.5.0 divides a copy of α, so its α is never divided.
    """
    a, g = activations.float(), gradients.float()
    denominator = 2 + g * a.sum(dim=(2, 3), keepdim=True)
    usable = (g != 0) & (denominator != 0)
    alpha = torch.where(usable, 1 / torch.where(usable, denominator, 1.0), 0.0)
    return (alpha * g.relu()).sum(dim=(2, 3), keepdim=True)


def hirescam(activations: Tensor, gradients: Tensor) -> Tensor:
    """W_k = G_k: map = relu(Σ_k G_k ⊙ A_k).

    Draelos & Carin, "Use HiResCAM instead of Grad-CAM", 2020, equation 6; the relu is Grad-CAM's.
    """
    return gradients.float()


def elementwise(activations: Tensor, gradients: Tensor) -> Tensor:
    """W_k = G_k where G_k ⊙ A_k > 0, else 0: map = Σ_k relu(G_k ⊙ A_k).

    pytorch-grad-cam's GradCAMElementWise: HiResCAM without the evidence against the target.
    """
    g = gradients.float()
    return g * (g * activations.float() > 0)


def layercam(activations: Tensor, gradients: Tensor) -> Tensor:
    """W_k = relu(G_k): map = relu(Σ_k relu(G_k) ⊙ A_k).

    Jiang et al., "LayerCAM", IEEE TIP 2021, equations 5 to 7.
    """
    return gradients.float().relu()


def xgradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """W_k = Σ_ij (A_kij / Σ_ab A_kab) G_kij.

    Fu et al., "Axiom-based Grad-CAM", BMVC 2020, equation 8. W_k = 0 where Σ A_k = 0, so a
    channel without activation adds nothing; pytorch-grad-cam adds 1e-7 to the denominator instead.
    """
    a, g = activations.float(), gradients.float()
    total = a.sum(dim=(2, 3), keepdim=True)
    weighted = (a * g).sum(dim=(2, 3), keepdim=True)
    return torch.where(total != 0, weighted / torch.where(total != 0, total, 1.0), 0.0)


def weighted_sum(weights: Tensor, activations: Tensor) -> Tensor:
    """Return Σ_k W_k ⊙ A_k: (n, K, 1 or h, 1 or w) and (n, K, h, w) → float32 (n, h, w)."""
    a = activations.float()
    if weights.shape[2:] == (1, 1):
        # As a product of matrices: einsum reorders the axes by a dozen operations.
        count, channels, *cells = a.shape
        return torch.bmm(weights.reshape(count, 1, channels), a.flatten(2)).view(count, *cells)
    return (weights * a).sum(dim=1)
