"""Methods that use gradients of noisy copies, or second derivatives, at the layer.

They are generators like those of `cam.methods.perturbation`.
"""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from cam.errors import MethodUnsuited
from cam.methods.gradient_weights import weighted_sum
from cam.methods.pixels import noisy_copies
from cam.methods.subject import Attribution, Steps, Subject
from cam.progress import Progress

_ATTENTION = Lock()


def smoothgradcam_plusplus(subject: Subject) -> Steps:
    """α = D² / (2 D² + D³ Σ_ab A_kab), D^p = 1/n Σ_i G_i^p over n noisy copies of the photo;
    W_k = Σ_ij α relu(D¹);  map = relu(Σ_k W_k A_k), A of the photo itself.

    Omeiza et al., "Smooth Grad-CAM++", 2019, equations 4 and 5. The numerator of α is D², as in
    Grad-CAM++ and torchcam; the paper prints D¹. torchcam weights the last copy's
    gradient instead of D¹. The noise is SmoothGrad's, from a fixed seed.
    """
    a = subject.activations()
    powers = torch.zeros(3, len(subject.targets), *a.shape[1:], device=a.device)
    for done, images in noisy_copies(subject):
        g = _gradients(subject, images)
        powers += torch.stack([(g**power).sum(1) for power in (1, 2, 3)])
        yield Progress(done, subject.budget)
    first, second, third = powers / subject.budget
    denominator = 2 * second + third * a.sum(dim=(2, 3), keepdim=True)
    usable = denominator != 0
    alpha = torch.where(usable, second / torch.where(usable, denominator, 1.0), 0.0)
    weights = (alpha * first.relu()).sum(dim=(2, 3), keepdim=True)
    return Attribution(weighted_sum(weights, a.expand(len(weights), -1, -1, -1)))


def shapleycam(subject: Subject) -> Steps:
    """W_k = 1/(hw) Σ_ij (G − ½ H A)_kij, H the Hessian of y at the layer;
    map = relu(Σ_k W_k A_k).

    Cai, "CAMs as Shapley Value-based Explainers", 2025, equation 18. Where everything after
    the layer is piecewise linear, H = 0 and the map is Grad-CAM's.

    Raises:
        MethodUnsuited: if an operation after the layer has no second derivative.
    """
    maps = []
    for turn in range(len(subject.targets)):
        # Fused attention has no second derivative. The attention backend is a setting of the whole
        # process, so one thread at a time may change it.
        with (
            _ATTENTION,
            sdpa_kernel(SDPBackend.MATH),
            subject.captured(subject.image) as (capture, scores),
        ):
            capture.backward(scores[turn], create_graph=True)
            live = capture.outputs[subject.layer]
            gradient = capture.gradients[subject.layer]
            curved = None
            if gradient.requires_grad:
                try:
                    (curved,) = torch.autograd.grad(
                        gradient, live, grad_outputs=live.detach(), allow_unused=True
                    )
                except RuntimeError as error:  # "derivative for … is not implemented"
                    raise MethodUnsuited(f"it needs second derivatives: {error}") from None
        corrected = gradient.detach() - (0 if curved is None else curved / 2)
        weights = subject.grid.apply(corrected).float().mean(dim=(2, 3), keepdim=True)
        maps.append(weighted_sum(weights, subject.activations())[0])
        yield Progress(turn + 1, len(subject.targets))
    return Attribution(torch.stack(maps))


def _gradients(subject: Subject, images: Tensor) -> Tensor:
    """Return each target's gradient at the layer for each image: float32 (targets, n, K, h, w)."""
    gradients = []
    with subject.captured(images) as (capture, scores):
        for score in scores:
            capture.backward(score, retain_graph=True)
            gradients.append(subject.grid.apply(capture.gradients[subject.layer]).float())
    return torch.stack(gradients)
