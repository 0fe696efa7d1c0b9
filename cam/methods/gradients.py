"""Methods that weight activations by gradients: one pure function per paper.

See `cam.methods` for what they take and return; sums over i, j run over the h × w positions.
"""

from __future__ import annotations

import torch
from torch import Tensor


def gradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """α_k = 1/(hw) Σ_ij G_kij;  map = relu(Σ_k α_k A_k).

    Selvaraju et al., "Grad-CAM", ICCV 2017, equations 1 and 2.
    """
    a, g = activations.float(), gradients.float()
    return _weighted(g.mean(dim=(2, 3)), a)


def gradcam_plusplus(activations: Tensor, gradients: Tensor) -> Tensor:
    """α_kij = G² / (2G² + G³ Σ_ab A_kab);  w_k = Σ_ij α_kij relu(G_kij);  map = relu(Σ_k w_k A_k).

    Chattopadhay et al., "Grad-CAM++", WACV 2018, equations 5 and 19, for Y = exp(y): then the
    second and third derivatives of Y are exp(y) G² and exp(y) G³, and the common positive factor
    exp(y) is left out of w (it would overflow, and min-max normalisation removes it).
    G² cancels, so α = 1 / (2 + G Σ A) is computed, exact where G² or G³ would underflow; α = 0
    where G = 0 or where the denominator is 0.

    Peers differ: pytorch-grad-cam 1.5.7 adds 1e-6 to the denominator, which outweighs 2G² as
    soon as |G| < 1e-3; torchcam 0.5.0 divides a copy of α and so never divides.
    """
    a, g = activations.float(), gradients.float()
    denominator = 2 + g * a.sum(dim=(2, 3), keepdim=True)
    usable = (g != 0) & (denominator != 0)
    alpha = torch.where(usable, 1 / torch.where(usable, denominator, 1.0), 0.0)
    return _weighted((alpha * g.relu()).sum(dim=(2, 3)), a)


def hirescam(activations: Tensor, gradients: Tensor) -> Tensor:
    """map = relu(Σ_k G_k ⊙ A_k).

    Draelos & Carin, "Use HiResCAM instead of Grad-CAM", 2020, equation 6; the relu as in Grad-CAM.
    """
    a, g = activations.float(), gradients.float()
    return (g * a).sum(dim=1).relu()


def elementwise(activations: Tensor, gradients: Tensor) -> Tensor:
    """map = Σ_k relu(G_k ⊙ A_k).

    pytorch-grad-cam's GradCAMElementWise: HiResCAM without what speaks against the target.
    """
    a, g = activations.float(), gradients.float()
    return (g * a).relu().sum(dim=1)


def layercam(activations: Tensor, gradients: Tensor) -> Tensor:
    """map = relu(Σ_k relu(G_k) ⊙ A_k).

    Jiang et al., "LayerCAM", IEEE TIP 2021, equations 5 to 7.
    """
    a, g = activations.float(), gradients.float()
    return (g.relu() * a).sum(dim=1).relu()


def xgradcam(activations: Tensor, gradients: Tensor) -> Tensor:
    """α_k = Σ_ij (A_kij / Σ_ab A_kab) G_kij;  map = relu(Σ_k α_k A_k).

    Fu et al., "Axiom-based Grad-CAM", BMVC 2020, equation 8. α_k = 0 where Σ A_k = 0: a channel
    without activation adds nothing. (pytorch-grad-cam adds 1e-7 to the denominator instead.)
    """
    a, g = activations.float(), gradients.float()
    total = a.sum(dim=(2, 3))
    weighted = (a * g).sum(dim=(2, 3))
    return _weighted(
        torch.where(total != 0, weighted / torch.where(total != 0, total, 1.0), 0.0), a
    )


def _weighted(weights: Tensor, activations: Tensor) -> Tensor:
    """relu(Σ_k weights_k A_k): (n, K) and (n, K, h, w) → (n, h, w)."""
    return torch.einsum("nk,nkhw->nhw", weights, activations).relu()
