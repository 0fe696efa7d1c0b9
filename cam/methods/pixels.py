"""Methods that differentiate the score with respect to the image itself.

They are generators like those of `cam.methods.perturbation`. Their maps have the input's size.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cam.errors import MethodUnsuited
from cam.hooks.inference import evaluating
from cam.methods.background import background_of, draws
from cam.methods.gradient_weights import gradcam, weighted_sum
from cam.methods.guidance import GuidedRectifiers
from cam.methods.subject import Attribution, Steps, Subject
from cam.methods.trial import Trial
from cam.outputs.outputs import forward
from cam.outputs.reading import Reading
from cam.progress import Progress

UNRECTIFIED = "it needs rectifiers (ReLU): this model has none"
"""Reason why gradients are not guided."""
NOISE = 0.15
"""σ of SmoothGrad as a share of the image's range; the paper recommends 0.1 … 0.2."""


def gradient(subject: Subject) -> Steps:
    """map = max_c |∂y/∂X_c|, c the colour channels.

    A pixel counts whether it raises or lowers the score.

    Simonyan et al., "Deep Inside Convolutional Networks", ICLR workshop 2014, section 3.
    """
    gradients = subject.gradients(subject.image)
    yield Progress(1, 1)
    return Attribution(gradients.mean(1).abs().amax(1))


def smoothgrad(subject: Subject) -> Steps:
    """map = max_c |1/n Σ_i ∂y/∂X_c at X + ε_i|, ε_i ~ N(0, σ²), σ = 0.15 (max X − min X).

    Smilkov et al., "SmoothGrad", 2017, section 3. The noise comes from a fixed seed, so the same
    photo gets the same map.
    """
    image = subject.image
    total = torch.zeros(len(subject.targets), *image.shape[1:], device=image.device)
    for done, images in noisy_copies(subject):
        total += subject.gradients(images).sum(1)
        yield Progress(done, subject.budget)
    return Attribution((total / subject.budget).abs().amax(1))


def integratedgradients(subject: Subject) -> Steps:
    """map = relu(Σ_c X_c 1/n Σ_i ∂y/∂X_c at (i − ½)/n X), from a gray image (0, the
    preprocessing's mean) to X.

    Sundararajan et al., "Axiomatic Attribution for Deep Networks", ICML 2017, equation 3, with
    the midpoint rule for the sum. Completeness (proposition 1): all attributions, of either sign,
    add up to y(X) − y(0), except for the error of the n steps.
    """
    image = subject.image
    total = torch.zeros(len(subject.targets), *image.shape[1:], device=image.device)
    steps = (torch.arange(subject.budget, device=image.device) + 0.5) / subject.budget
    done = 0
    for some in torch.split(steps, subject.share):
        total += subject.gradients(image * some[:, None, None, None].to(image)).sum(1)
        done += len(some)
        yield Progress(done, subject.budget)
    attributions = image.float() * total / subject.budget  # (targets, C, H, W)
    end, start = subject.scores(torch.cat([image, torch.zeros_like(image)]))
    return Attribution.of_colours(attributions, end - start)


def expectedgradients(subject: Subject) -> Steps:
    """map = relu(Σ_c 1/n Σ_i (X − X'_i)_c ∂y/∂X_c at X'_i + α_i (X − X'_i)), X'_i from the
    background, α_i ~ U(0, 1).

    Erion et al., "Improving performance of deep learning models with axiomatic attribution priors
    and expected gradients", Nature Machine Intelligence 2021: the expectation that defines expected
    gradients, by n seeded draws, see `cam.methods.background`. Completeness: all attributions, of
    either sign, add up to y(X) less the mean of y over the X'_i, except for the error of the n
    draws.
    """
    image, count = subject.image, subject.budget
    background = background_of(subject.model, image)
    turns, shares = draws(len(background), count)
    total = torch.zeros(len(subject.targets), *image.shape[1:], device=image.device)
    done = 0
    for some, turn in zip(
        torch.split(shares, subject.share), torch.split(turns, subject.share), strict=True
    ):
        others = background[turn.to(image.device)]
        alpha = some[:, None, None, None].to(image)
        gradients = subject.gradients(alpha * image + (1 - alpha) * others)
        total += ((image - others).float() * gradients).sum(1)
        done += len(some)
        yield Progress(done, count)
    attributions = total / count  # (targets, C, H, W)
    drawn = background[turns[: len(background)].to(image.device)]  # each once
    end, *starts = subject.scores(torch.cat([image, drawn]))
    wanted = end - torch.stack([starts[draw % len(drawn)] for draw in range(count)]).mean(0)
    return Attribution.of_colours(attributions, wanted)


def guidedbackprop(subject: Subject) -> Steps:
    """map = max_c |R_c|, R the gradient at the photo where every rectifier passes back positive
    gradients only.

    Springenberg et al., "Striving for Simplicity", ICLR workshop 2015, section 3.4. The
    map shows edges more than classes (Adebayo et al., "Sanity Checks for Saliency Maps", NeurIPS
    2018).

    Raises:
        MethodUnsuited: if the model has no rectifiers.
    """
    gradients = _guided(subject)
    yield Progress(1, 1)
    return Attribution(gradients)


def guidedgradcam(subject: Subject) -> Steps:
    """map = M ⊙ max_c |R_c|, M Grad-CAM's map at the layer resized to the photo, R as in guided
    backpropagation.

    Selvaraju et al., "Grad-CAM", ICCV 2017, section 3.2.

    Raises:
        MethodUnsuited: if the model has no rectifiers.
    """
    fine = _guided(subject)
    yield Progress(1, 2)
    a = subject.activations()
    maps = []
    with subject.captured(subject.image) as (capture, scores):
        for score in scores:
            capture.backward(score, retain_graph=True)
            g = subject.grid.apply(capture.gradients[subject.layer])
            maps.append(weighted_sum(gradcam(a, g), a).relu())
    coarse = subject.grid.enlarge(torch.stack(maps), subject.size)[:, 0]
    yield Progress(2, 2)
    return Attribution(coarse * fine)


def noisy_copies(subject: Subject) -> Iterator[tuple[int, Tensor]]:
    """Yield noisy copies of the image in chunks, as many as the budget allows.

    Each item is the number of copies so far and a chunk of copies (n, C, H, W). The noise has
    SmoothGrad's σ and a fixed seed, so the copies are the same every time.
    """
    image = subject.image
    rng = torch.Generator().manual_seed(0)
    sigma = NOISE * float(image.max() - image.min())
    for done in range(0, subject.budget, subject.share):
        count = min(subject.share, subject.budget - done)
        noise = sigma * torch.randn(count, *image.shape[1:], generator=rng)
        yield done + count, image + noise.to(image)


def _guided(subject: Subject) -> Tensor:
    """Return max_c |R_c|: float32 (targets, H, W).

    Raises:
        MethodUnsuited: if the model has no rectifiers.
    """
    with GuidedRectifiers() as guided:
        gradients = subject.gradients(subject.image)
    if not guided.count:
        raise MethodUnsuited(UNRECTIFIED)
    return gradients.mean(1).abs().amax(1)


def unsuited(trial: Trial, name: str) -> str | None:
    """Return why a model does not suit a method that guides gradients: see `Method.unsuited`."""
    if trial.once(_rectifiers):
        return None
    return UNRECTIFIED


def _rectifiers(model: nn.Module, image: Tensor, reading: Reading) -> int:
    """Return how many rectifiers a forward pass runs through."""
    with evaluating(model), GuidedRectifiers() as guided:
        forward(model, image, reading)
    count: int = guided.count
    return count
