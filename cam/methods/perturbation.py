"""Methods that change the image or a layer and observe the score: N forward passes, no gradient.

Each method is a generator: it yields its progress after every chunk of forward passes, and returns
an `Attribution` at the end. Between two steps it holds no lock and no hook on the model. The last
relu of the formulas is left to the caller, which may want the negative values, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from cam.errors import CamError, MethodUnsuited
from cam.hooks.grids import TOKENS_FIRST
from cam.methods.head import cam
from cam.methods.subject import Attribution, Steps, Subject
from cam.methods.trial import Trial
from cam.progress import Passes, Progress, finish

SAMPLES = 10
"""Samples of each channel in SS-CAM and IS-CAM: the N of both papers' experiments."""
NOISE = 2.0
"""σ of SS-CAM, as in its paper, in units of the activation."""
CHANNELS: Final = "channels of the greatest variance"
"""What passes are made for if the budget is too small for all channels."""
NO_VALUES: Final = "it weighs masks by a probability, which the value of a regression does not have"
"""Reason why `rise` does not explain a value."""


def scorecam(subject: Subject) -> Steps:
    """α_k = softmax_k(y(X ∘ H_k)), H_k = A_k resized to the image and min-max scaled;
    map = relu(Σ_k α_k A_k).

    Wang et al., "Score-CAM", CVPR workshops 2020, algorithm 1. If the budget is less than the
    number of channels, the channels of the greatest variance are used. pytorch-grad-cam resizes
    with aligned corners; here, as in torchcam, pixel centres are aligned.
    """
    return (yield from _masked(subject, 1, lambda masks, sample: _scaled(masks)))


def sscam(subject: Subject) -> Steps:
    """α_k = softmax_k(1/N Σ_i y(X ∘ s(U(A_k) + δ_i))), U resizing to the image, s min-max scaling,
    δ_i ~ N(0, σ²) at each pixel, N = 10, σ = 2; map = relu(Σ_k α_k A_k).

    Wang et al., "SS-CAM: Smoothed Score-CAM", 2020, section 3, smoothing of the feature maps. The
    noise comes from a fixed seed, so the same photo gets the same map. The number of
    channels is at most a tenth of the budget; the channels of the greatest variance are used.
    """
    rng = torch.Generator().manual_seed(0)

    def noisy(masks: Tensor, sample: int) -> Tensor:
        return _scaled(masks + (NOISE * torch.randn(masks.shape, generator=rng)).to(masks))

    return (yield from _masked(subject, SAMPLES, noisy))


def iscam(subject: Subject) -> Steps:
    """α_k = softmax_k(1/N Σ_i y(c_i X ∘ H_k)), c_i = Σ_{j ≤ i} j/N, N = 10, H_k as in Score-CAM;
    map = relu(Σ_k α_k A_k).

    Naidu et al., "IS-CAM: Integrated Score-CAM", 2020, algorithm 1. Its factors add up, so the
    last one is (N + 1) / 2, as in torchcam. The number of channels is at most a tenth of the
    budget; the channels of the greatest variance are used.
    """

    def scaled(masks: Tensor, sample: int) -> Tensor:
        return _scaled(masks) * (sample * (sample + 1) / 2 / SAMPLES)

    return (yield from _masked(subject, SAMPLES, scaled))


def _masked(subject: Subject, samples: int, shape: Callable[[Tensor, int], Tensor]) -> Steps:
    """Weight the channels by the softmax of their scores.

    The score of a channel is the mean over samples 1 … `samples` of the score of the photo times
    `shape(resized channels (n, 1, H, W), sample)`.
    """
    a = subject.activations()
    whole = a.shape[1] * samples
    samples = min(samples, subject.budget)
    chosen = _strongest(a, subject.budget // samples)
    scores: list[Tensor] = []
    done, stopped = 0, False
    for channels in torch.split(chosen, subject.chunk):
        if stopped := bool(scores) and subject.stop():
            break
        masks = subject.grid.enlarge(a[:, channels], subject.size).transpose(0, 1)
        mean = torch.zeros(len(channels), len(subject.targets), device=a.device)
        for sample in range(1, samples + 1):
            seen = subject.image * shape(masks, sample).to(subject.image)
            mean += subject.scores(seen) / samples
            done += len(channels)
            yield Progress(done, len(chosen) * samples)
        scores.append(mean)
    weights = torch.cat(scores).softmax(0)  # (channels, targets)
    maps = torch.einsum("kt,khw->thw", weights, a[0, chosen[: len(weights)]])
    return Attribution(maps, passes=Passes(done, whole, stopped, CHANNELS))


def ablationcam(subject: Subject) -> Steps:
    """w_k = (y − y_k) / |y|, y_k the score without channel k; map = relu(Σ_k w_k A_k).

    Desai & Ramaswamy, "Ablation-CAM", WACV 2020, equations 5 and 6. The paper divides by y,
    which is the same for a positive score; a negative score would invert the map. Only the part of
    the model after the layer is run again. If the budget is less than the number of channels, the
    channels of the greatest variance are used. A channel is set to zero; pytorch-grad-cam sets it
    below the layer's minimum where that minimum is not zero.
    """
    replay = subject.replay()
    a = subject.activations()
    chosen = _strongest(a, subject.budget)
    (whole,) = subject.replayed(replay, replay.activation)
    scores: list[Tensor] = []
    stopped = False
    for channels in torch.split(chosen, subject.chunk):
        if stopped := bool(scores) and subject.stop():
            break
        changed = replay.activation.repeat(len(channels), *[1] * (replay.activation.ndim - 1))
        values = subject.grid.apply(changed).clone()
        values[torch.arange(len(channels)), channels] = 0
        scores.append(subject.replayed(replay, subject.grid.put(changed, values)))
        yield Progress(sum(map(len, scores)), len(chosen))
    weights = (whole - torch.cat(scores)) / torch.where(whole == 0, 1.0, whole.abs())
    maps = torch.einsum("kt,khw->thw", weights, a[0, chosen[: len(weights)]])
    return Attribution(maps, passes=Passes(len(weights), a.shape[1], stopped, CHANNELS))


def reciprocam(subject: Subject) -> Steps:
    """map_ij = relu(y(A ⊙ 1_ij) − y(0)): the score if the layer has its activations at one position
    alone, less the score without any.

    Byun & Lee, "ReciproCAM: Lightweight Gradient-free Class Activation Map for Post-hoc
    Explanations", CVPR workshops 2024. The paper scales the scores to 0 … 1 by their minimum and
    maximum; here the score without activations is subtracted, so that 0 means no evidence. The
    authors' code takes probabilities, as `of: probability` of a target does, and can smooth the
    mask of a position by a Gaussian. Behind a linear head that reads the layer's mean, the map is
    CAM divided by the number of positions, and no pass is made. Tokens that are not positions, such
    as a class token, stay as they are. If the budget is less than the number of positions, those
    with the greatest activations are used, and the others are 0.
    """
    if (exact := _behind_head(subject)) is not None:
        yield Progress(1, 1)
        return exact
    replay = subject.replay()
    a = subject.activations()
    rows, columns = a.shape[2:]
    strength = a[0].flatten(1).norm(dim=0)
    chosen = strength.topk(min(subject.budget, len(strength))).indices
    nothing = torch.zeros_like(subject.grid.apply(replay.activation))
    empty = subject.replayed(replay, subject.grid.put(replay.activation, nothing))
    maps = torch.zeros(len(subject.targets), len(strength), device=a.device)
    done, stopped = 0, False
    for some in torch.split(chosen, subject.chunk):
        if stopped := done > 0 and subject.stop():
            break
        changed = replay.activation.repeat(len(some), *[1] * (replay.activation.ndim - 1))
        values = subject.grid.apply(changed)
        kept = torch.zeros(len(some), len(strength), device=a.device)
        kept[torch.arange(len(some)), some] = 1
        alone = values * kept.reshape(-1, 1, rows, columns).to(values)
        scores = subject.replayed(replay, subject.grid.put(changed, alone))
        maps[:, some] = (scores - empty).T
        done += len(some)
        yield Progress(done, len(chosen))
    passes = Passes(done, len(strength), stopped, "positions with the greatest activations")
    return Attribution(maps.reshape(-1, rows, columns), passes=passes)


def _behind_head(subject: Subject) -> Attribution | None:
    """Return Recipro-CAM's map from the weights of a pooled linear head, if the model has one."""
    try:
        attribution = finish(cam(subject))
    except CamError:
        return None
    positions = attribution.maps.shape[1] * attribution.maps.shape[2]
    return Attribution(attribution.maps / positions)


def rise(subject: Subject) -> Steps:
    """map = 1/(N p) Σ_i P(X ∘ M_i) M_i over N random masks M_i, P the target's probability.

    Petsiuk et al., "RISE", BMVC 2018, equation 6, with masks of 7 × 7 cells, each open with
    p = 0.5, enlarged smoothly and shifted by a random part of a cell. The masks come from a fixed
    seed, so the same photo gets the same map.

    Raises:
        MethodUnsuited: if a target is against a class, because no probability is below 0; or if
            the model's output is a value, because it has no probability.
    """
    if subject.reading.meaning == "value":
        raise MethodUnsuited(f"rise explains no value: {NO_VALUES}")
    if any(getattr(target, "against", False) for target in subject.targets):
        raise MethodUnsuited("rise explains only the evidence for a class; leave out against")
    opened, done, stopped = 0.5, 0, False
    likely = subject.of_probabilities()
    total = torch.zeros(len(subject.targets), *subject.size)
    for masks in random_masks(subject, cells=7, opened=opened):
        if stopped := done > 0 and subject.stop():
            break
        scores = likely.scores(subject.image * masks.to(subject.image))
        total += torch.einsum("nt,nhw->thw", scores.cpu(), masks[:, 0])
        done += len(masks)
        yield Progress(done, subject.budget)
    return Attribution(total / (done * opened), passes=Passes(done, subject.budget, stopped))


def random_masks(subject: Subject, *, cells: int, opened: float) -> Iterator[Tensor]:
    """Yield RISE's masks in chunks (n, 1, H, W), in 0 … 1, as many as the budget allows.

    A mask has `cells` × `cells` cells, each open with probability `opened`. It is enlarged smoothly
    and shifted by a random part of a cell. The masks come from a fixed seed.
    """
    height, width = subject.size
    rng = torch.Generator().manual_seed(0)
    step_y, step_x = -(-height // cells), -(-width // cells)
    enlarged = ((cells + 1) * step_y, (cells + 1) * step_x)
    for done in range(0, subject.budget, subject.chunk):
        count = min(subject.chunk, subject.budget - done)
        small = (torch.rand(count, 1, cells + 1, cells + 1, generator=rng) < opened).float()
        big = interpolate(small, size=enlarged, mode="bilinear")
        tops = torch.randint(0, step_y, (count,), generator=rng).tolist()
        lefts = torch.randint(0, step_x, (count,), generator=rng).tolist()
        yield torch.stack(
            [
                mask[:, y : y + height, x : x + width]
                for mask, y, x in zip(big, tops, lefts, strict=True)
            ]
        )


def occlusion(subject: Subject) -> Steps:
    """map = relu(mean over the windows that cover a cell of P(X) − P(X with the window gray)).

    Zeiler & Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014, section
    4.2. The cells are as small as the budget allows, at most 28 on the longer side; a window is
    2 × 2 cells and moves by one cell. Gray is 0, the preprocessing's mean.
    """
    height, width = subject.size
    for cell in itertools.count(-(-max(height, width) // 28)):
        rows, columns = max(-(-height // cell), 2), max(-(-width // cell), 2)
        if (rows - 1) * (columns - 1) <= max(subject.budget, 1):
            break
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
    cells = total / covered
    pixels = cells.repeat_interleave(cell, 1).repeat_interleave(cell, 2)
    return Attribution(pixels[:, :height, :width])


def _scaled(masks: Tensor) -> Tensor:
    """Scale each mask (n, 1, H, W) to 0 … 1 by its minimum and maximum."""
    low, high = masks.amin(dim=(2, 3), keepdim=True), masks.amax(dim=(2, 3), keepdim=True)
    return (masks - low) / (high - low).clamp(min=1e-8)


def _strongest(activations: Tensor, budget: int) -> Tensor:
    """Return the indices of the channels of the greatest variance, at most `budget`, in descending
    order."""
    variance = activations[0].flatten(1).var(dim=1)
    return variance.topk(min(budget, len(variance))).indices


def unsuited_to_remove(trial: Trial, name: str) -> str | None:
    """Return why a model does not suit Ablation-CAM: see `Method.unsuited`."""
    return TOKENS_FIRST if trial.grid is not None and trial.grid.tokens_first else None


def unsuited_to_weigh(trial: Trial, name: str) -> str | None:
    """Return why a model does not suit RISE: see `Method.unsuited`."""
    return NO_VALUES if trial.output.kind == "value" else None
