"""How much the answers of one way are like those of another: whether a fast path may be used.

A fast path is judged against the exact way on the same images. At every size of batch and in every
row of it the logits must be nearly the exact ones, the top class must be the same unless the exact
model cannot tell the two apart, and the maps must correlate. Each method has a fidelity of its own,
since a method that divides, compares or decomposes may turn a rounding into another map.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cam.errors import CamError, Unfaithful
from cam.explanation import Answer, Map, Question
from cam.methods import METHODS
from cam.outputs.output import Output
from cam.passes.fast import FastPath
from cam.targets import ClassTarget, Target

LEAST = 0.98
"""Pearson's correlation below which another map counts as another one."""
ROUNDINGS = 8
"""How far apart the logits of two classes may be that are taken for each other, in roundings: see
`roundings_apart`. Every layer rounds: EfficientNet-Lite0's logits are off by 1.4 roundings of
bfloat16 (standard deviation, median of 40 samples; at most 3.1), and differences by more."""
POSITIONS = 4096
"""Most pixels of a segmenter whose logits are compared."""

Explain = Callable[[Tensor, Sequence[Question]], list[Answer | CamError]]


@dataclass(frozen=True)
class Fidelity:
    """How much a method's fast maps are like the exact ones over several images: Pearson's
    correlation, -1 … 1."""

    median: float
    worst: float

    @property
    def enough(self) -> bool:
        """Whether the method may be served fast. The median is then at least as good."""
        return self.worst >= LEAST


def likeness(one: Answer | CamError, other: Answer | CamError) -> float | None:
    """Pearson's correlation of two answers' maps, -1 … 1; the least of them, of several. A flat map
    is as unlike another as can be, 0; two flat maps tell nothing, and if there is nothing but
    these, the answer is None.

    Raises:
        CamError: if one of the answers is an error.
    """
    for each in (one, other):
        if isinstance(each, CamError):
            raise each
    assert isinstance(one, Answer)
    assert isinstance(other, Answer)
    found = [
        _correlation(first.map, second.map)
        for first, second in zip(one.explanations, other.explanations, strict=True)
    ]
    return min((each for each in found if each is not None), default=None)


def roundings_apart(logits: Tensor, said: Tensor, dtype: torch.dtype) -> Tensor:
    """How far the logits of other classes are below the highest, in roundings of `dtype` at the
    size of the largest logit: eps · max |z|.

    Args:
        logits: (C, …), the exact ones.
        said: (…), the classes that another path puts first.

    Returns:
        float32 (…), 0 where both put the same class first.
    """
    values = logits.float()
    gaps = values.amax(0) - values.gather(0, said[None])[0]
    return gaps / (values.abs().amax(0) * torch.finfo(dtype).eps).clamp(min=1e-30)


def judge(
    fast: FastPath, exact: Explain, images: Tensor, methods: Sequence[str]
) -> dict[str, Fidelity]:
    """Compare a fast path with the exact way: the maps of the predicted class by every method, at
    every size of batch and in every row of it. Each image is seen at each size. Methods without
    weights, which decompose activations and may cost more than the pass, are asked at the largest
    size alone; what they start from is what the others show at each size.

    Other targets (`against`, `minus`, of probability) and signed maps are made of the same
    activations, gradients and logits; they are not judged by themselves.

    Args:
        fast: a classifier's or a segmenter's.
        exact: answers the same number of questions for each image, as `explain_batch` does.
        images: float (N, C, H, W), preprocessed, on the model's device; several.
        methods: names of methods of one pass.

    Returns:
        The fidelity of each method whose maps could be compared for half of the images or more. Of
        the others too many maps are flat, or the model has none.

    Raises:
        Unfaithful: if the logits or all maps of a row are others, or if there is nothing to compare
            with.
        CamError: if one of the two ways cannot be used.
    """
    known = [_exactly(fast.layer, exact, image, methods) for image in images]
    # Over the images as well as the classes: there may be one class alone.
    variance = float(torch.stack([each.logits for each in known]).var(correction=0))
    if not variance > 0:
        raise Unfaithful("the exact model's logits are all the same: there is nothing to compare")
    worst: dict[str, dict[int, float]] = {name: {} for name in methods}
    for size in fast.sizes:
        largest = size == fast.sizes[-1]
        names = [name for name in methods if largest or METHODS[name].weights]
        for start in range(0, len(images), size):
            rows = [row % len(images) for row in range(start, start + size)]
            questions = [
                Question((known[row].target,), name, (fast.layer,))
                for name in names
                for row in rows
            ]
            answers = fast.explain(images[rows], questions)
            for place, row in enumerate(rows):
                own = dict(zip(names, answers[place::size], strict=True))
                try:
                    found = _compare(known[row], own, variance, fast.dtype)
                except Unfaithful as error:
                    where = f"row {place} of a batch of {size}"
                    raise Unfaithful(f"in {where} {error}") from None
                for name, value in found.items():
                    worst[name][row] = min(value, worst[name].get(row, 1.0))
    return {
        name: Fidelity(statistics.median(found.values()), min(found.values()))
        for name, found in worst.items()
        if 2 * len(found) >= len(images)
    }


@dataclass(frozen=True, eq=False)
class _Exact:
    """What the exact way says of one image alone."""

    logits: Tensor
    """See `_logits_of`."""
    target: Target
    """The predicted class, and of a segmenter the pixels where it wins."""
    maps: dict[str, Map]
    """By method; without those that the model does not have."""


def _exactly(layer: str, exact: Explain, image: Tensor, methods: Sequence[str]) -> _Exact:
    questions = [Question((ClassTarget(),), name, (layer,)) for name in methods]
    answers = dict(zip(methods, exact(image[None], questions), strict=True))
    good = {name: each for name, each in answers.items() if isinstance(each, Answer)}
    for each in answers.values():
        if isinstance(each, CamError) and not good:
            raise each
    said = next(iter(good.values()))
    maps = {name: each.explanations[0].map for name, each in good.items()}
    return _Exact(_logits_of(said.output), said.explanations[0].target, maps)


def _compare(
    known: _Exact, answers: dict[str, Answer | CamError], variance: float, dtype: torch.dtype
) -> dict[str, float]:
    """How much the maps of one row are like the exact ones, by method: 0 where an answer is an
    error, nothing where both maps are flat.

    Raises:
        Unfaithful: if what the model says is something else, or all maps are.
    """
    good = {name: each for name, each in answers.items() if isinstance(each, Answer)}
    for said in list(good.values())[:1]:  # all are of one forward pass
        _check_logits(known.logits, _logits_of(said.output), variance, dtype)
    found = {
        name: _correlation(good[name].explanations[0].map, known.maps[name])
        if name in good
        else 0.0
        for name in answers
        if name in known.maps
    }
    alike = {name: each for name, each in found.items() if each is not None}
    if alike and not max(alike.values()) >= LEAST:
        raise Unfaithful(
            f"the maps correlate {max(alike.values()):.3f} with the exact ones, less than {LEAST}, "
            "by whichever method"
        )
    return alike


def _check_logits(exact: Tensor, fast: Tensor, variance: float, dtype: torch.dtype) -> None:
    """
    Raises:
        Unfaithful: if the fast logits are others, or put another class first.
    """
    missed, most = float((fast - exact).square().mean()) / variance, 1 - LEAST**2
    if not missed <= most:  # a correlation of LEAST leaves so much of the variance unexplained
        raise Unfaithful(
            f"the logits miss {missed:.3f} of the exact ones' variance; at most {most:.3f} is "
            "allowed"
        )
    apart = roundings_apart(exact, fast.argmax(0), dtype)
    # A classifier's image has one top class, a segmenter's one for each pixel.
    if float((apart <= ROUNDINGS).float().mean()) < LEAST:
        raise Unfaithful(
            f"another class is predicted, whose exact logit is {float(apart.max()):.1f} roundings "
            f"lower; at most {ROUNDINGS} are allowed"
        )


def _logits_of(output: Output) -> Tensor:
    """(C, positions) on the CPU, float32; of a segmenter at some of its pixels."""
    values = output.logits if output.segments is None else output.segments
    assert values is not None
    flat = values.flatten(1) if values.ndim > 1 else values[:, None]
    return flat[:, :: math.ceil(flat.shape[1] / POSITIONS)].cpu().clone()


def _correlation(one: Map, other: Map) -> float | None:
    """None of two flat maps, 0 of one."""
    flat = [float(np.ptp(each)) == 0 for each in (one, other)]
    if any(flat):
        return None if all(flat) else 0.0
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])
