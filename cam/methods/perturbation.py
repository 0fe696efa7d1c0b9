"""Methods that change the image or a layer and watch the score: N forward passes, no gradient.

Each is a generator: after every chunk of forward passes it yields its progress, and it returns the
maps, float32 (targets, h, w), ≥ 0. Nothing of the model is held between two steps.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from cam.methods.subject import Subject


@dataclass(frozen=True)
class Progress:
    """How far a method is, in forward passes of one image."""

    done: int
    total: int


Steps = Generator[Progress, None, Tensor]


def scorecam(subject: Subject) -> Steps:
    """α_k = softmax_k(y(X ∘ H_k)), H_k = A_k resized to the image and min-max scaled;
    map = relu(Σ_k α_k A_k).

    Wang et al., "Score-CAM", CVPR workshops 2020, algorithm 1. Without a budget for all channels
    those of the greatest variance are taken. pytorch-grad-cam resizes with aligned corners, here
    (and in torchcam) pixel centres are.
    """
    a = subject.activations()
    chosen = _strongest(a, subject.budget)
    size = subject.image.shape[-2:]
    scores = []
    for channels in torch.split(chosen, subject.chunk):
        masks = interpolate(a[:, channels], size=size, mode="bilinear").transpose(0, 1)
        low, high = masks.amin(dim=(2, 3), keepdim=True), masks.amax(dim=(2, 3), keepdim=True)
        masks = (masks - low) / (high - low).clamp(min=1e-8)
        scores.append(subject.scores(subject.image * masks.to(subject.image)))
        yield Progress(sum(map(len, scores)), len(chosen))
    weights = torch.cat(scores).softmax(0)  # (channels, targets)
    return torch.einsum("kt,khw->thw", weights, a[0, chosen]).relu()


def ablationcam(subject: Subject) -> Steps:
    """w_k = (y − y_k) / y, y_k the score without channel k; map = relu(Σ_k w_k A_k).

    Desai & Ramaswamy, "Ablation-CAM", WACV 2020, equations 5 and 6. Only what lies behind the
    layer is run again. Without a budget for all channels those of the greatest variance are
    taken. A channel is set to zero; pytorch-grad-cam sets it below the layer's minimum where that
    minimum is not zero.
    """
    replay = subject.replay()
    a = subject.activations()
    chosen = _strongest(a, subject.budget)
    (whole,) = subject.scores_of(replay.logits(replay.activation))
    scores = []
    for channels in torch.split(chosen, subject.chunk):
        changed = replay.activation.repeat(len(channels), *[1] * (replay.activation.ndim - 1))
        grid = subject.grid.apply(changed)  # a view: what is written here is written there
        grid[torch.arange(len(channels)), channels] = 0
        scores.append(subject.scores_of(replay.logits(changed)))
        yield Progress(sum(map(len, scores)), len(chosen))
    weights = (whole - torch.cat(scores)) / torch.where(whole == 0, 1.0, whole)
    return torch.einsum("kt,khw->thw", weights, a[0, chosen]).relu()


def rise(subject: Subject) -> Steps:
    """map = 1/(N p) Σ_i P(X ∘ M_i) M_i over N random masks M_i, P the target's probability.

    Petsiuk et al., "RISE", BMVC 2018, equation 6: masks of 7 × 7 cells, each open with p = 0.5,
    enlarged smoothly and shifted by a random part of a cell. The masks come from a fixed seed, so
    the same photo gets the same map.
    """
    height, width = subject.image.shape[-2:]
    cells, opened = 7, 0.5
    rng = torch.Generator().manual_seed(0)
    step_y, step_x = -(-height // cells), -(-width // cells)
    enlarged = ((cells + 1) * step_y, (cells + 1) * step_x)
    likely = subject.of_probabilities()
    total = torch.zeros(len(subject.targets), height, width)
    for done in range(0, subject.budget, subject.chunk):
        count = min(subject.chunk, subject.budget - done)
        small = (torch.rand(count, 1, cells + 1, cells + 1, generator=rng) < opened).float()
        big = interpolate(small, size=enlarged, mode="bilinear")
        tops = torch.randint(0, step_y, (count,), generator=rng).tolist()
        lefts = torch.randint(0, step_x, (count,), generator=rng).tolist()
        masks = torch.stack(
            [
                each[:, y : y + height, x : x + width]
                for each, y, x in zip(big, tops, lefts, strict=True)
            ]
        )
        scores = likely.scores(subject.image * masks.to(subject.image))
        total += torch.einsum("nt,nhw->thw", scores.cpu(), masks[:, 0])
        yield Progress(done + count, subject.budget)
    return (total / (subject.budget * opened)).relu()


def occlusion(subject: Subject) -> Steps:
    """map = relu(mean over the windows that cover a cell of P(X) − P(X with the window gray)).

    Zeiler & Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014, section
    4.2. The cells are as small as the budget allows, at most 28 on the longer side; a window is
    2 × 2 cells and moves by one. Gray is the preprocessing's mean, 0.
    """
    height, width = subject.image.shape[-2:]
    longer = max(int((subject.budget * max(height, width) / min(height, width)) ** 0.5) + 1, 2)
    cell = -(-max(height, width) // min(longer, 28))
    rows, columns = max(-(-height // cell), 2), max(-(-width // cell), 2)
    while (rows - 1) * (columns - 1) > subject.budget:
        cell += 1
        rows, columns = max(-(-height // cell), 2), max(-(-width // cell), 2)
    windows = [(y, x) for y in range(rows - 1) for x in range(columns - 1)]
    likely = subject.of_probabilities()
    (whole,) = likely.scores(subject.image)
    total = torch.zeros(len(subject.targets), rows, columns)
    covered = torch.zeros(rows, columns)
    for start in range(0, len(windows), subject.chunk):
        some = windows[start : start + subject.chunk]
        images = subject.image.repeat(len(some), 1, 1, 1)
        for image, (y, x) in zip(images, some, strict=True):
            image[:, y * cell : (y + 2) * cell, x * cell : (x + 2) * cell] = 0
        drops = (whole - likely.scores(images)).cpu()
        for drop, (y, x) in zip(drops, some, strict=True):
            total[:, y : y + 2, x : x + 2] += drop[:, None, None]
            covered[y : y + 2, x : x + 2] += 1
        yield Progress(min(start + subject.chunk, len(windows)), len(windows))
    cells = (total / covered).relu()
    pixels = cells.repeat_interleave(cell, 1).repeat_interleave(cell, 2)
    return pixels[:, :height, :width]


def _strongest(activations: Tensor, budget: int) -> Tensor:
    """The indices of the at most `budget` channels of the greatest variance, in order."""
    variance = activations[0].flatten(1).var(dim=1)
    return variance.topk(min(budget, len(variance))).indices.sort().values
