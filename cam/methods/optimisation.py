"""Opti-CAM: the channels' weights are optimised for one image."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from cam.methods.subject import Attribution, Steps, Subject, gradient_at
from cam.progress import Passes, Progress

RATE: Final = 0.1
"""Learning rate of Adam: that of the paper."""


def opticam(subject: Subject) -> Steps:
    """map = Σ_k softmax(u)_k relu(A_k), with the u that maximises y(X ⊙ n(U(map))), U resizing to
    the image and n scaling to 0 … 1 by the minimum and maximum.

    Zhang et al., "Opti-CAM: Optimizing saliency maps for interpretability", CVIU 2024, with the
    target's score as objective: u starts at 0 and takes as many steps of Adam, at a rate of 0.1, as
    the budget allows; 100 in the paper. The relu of the activations is in the authors' code alone.
    Each target has its own u. The map of the greatest score on the way is returned, not that of the
    last step.

    Raises:
        NoGradientPath: if no gradient of the target reaches the image.
    """
    with torch.inference_mode(False):  # autograd can use the copy for a backward pass
        a = subject.activations().detach().clone()[0].relu()
    total = subject.budget * len(subject.targets)
    maps: list[Tensor] = []
    done, stopped = 0, False
    for turn in range(len(subject.targets)):
        with torch.inference_mode(False):
            weights = torch.zeros(len(a), device=a.device, requires_grad=True)
            adam = torch.optim.Adam([weights], lr=RATE)
        best, kept = None, a.mean(0)
        for step in range(subject.budget):
            if stopped := step > 0 and (stopped or subject.stop()):
                break
            with torch.inference_mode(False), torch.enable_grad():
                small = torch.einsum("k,khw->hw", weights.softmax(0), a)
                mask = subject.grid.enlarge(small[None, None], subject.size)
                low, high = mask.amin(), mask.amax()
                scaled = (mask - low) / (high - low).clamp(min=1e-8)
                (output,) = subject.outputs(subject.image.clone() * scaled.to(subject.image))
                score = subject.targets[turn].score(output).float()
                weights.grad = gradient_at(weights, -score)
                adam.step()
            reached = float(score.detach())
            if best is None or reached > best:
                best, kept = reached, small.detach()
            done += 1
            yield Progress(turn * subject.budget + step + 1, total)
        maps.append(kept)
    return Attribution(torch.stack(maps), passes=Passes(done, total, done < total))
