"""Methods that differentiate the score with respect to the image itself.

Generators like those of `cam.methods.perturbation`; their maps have the input's size. Where the
score rises or falls with a pixel both count: these maps say what matters, not what speaks for.
"""

from __future__ import annotations

import torch

from cam.methods.perturbation import Progress, Steps
from cam.methods.subject import Subject

NOISE = 0.15
"""SmoothGrad's σ as a share of the image's range: within the 0.1 … 0.2 that the paper advises."""


def gradient(subject: Subject) -> Steps:
    """map = max_c |∂y/∂X_c|, c the colour channels.

    Simonyan et al., "Deep Inside Convolutional Networks", ICLR workshop 2014, section 3.
    """
    found = subject.gradients(subject.image)
    yield Progress(1, 1)
    return found.mean(1).abs().amax(1)


def smoothgrad(subject: Subject) -> Steps:
    """map = max_c |1/n Σ_i ∂y/∂X_c at X + ε_i|, ε_i ~ N(0, σ²), σ = 0.15 (max X − min X).

    Smilkov et al., "SmoothGrad", 2017, section 3. The noise comes from a fixed seed, so the same
    photo gets the same map.
    """
    image = subject.image
    rng = torch.Generator().manual_seed(0)
    sigma = NOISE * float(image.max() - image.min())
    total = torch.zeros(len(subject.targets), *image.shape[1:])
    for done in range(0, subject.budget, subject.chunk):
        count = min(subject.chunk, subject.budget - done)
        noise = sigma * torch.randn(count, *image.shape[1:], generator=rng)
        total += subject.gradients(image + noise.to(image)).sum(1).cpu()
        yield Progress(done + count, subject.budget)
    return (total / subject.budget).abs().amax(1)
