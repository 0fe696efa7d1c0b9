"""Compare the answers of a fast path with the exact ones, to decide whether it may be used.

A fast path is judged against the exact path on the same images. At every batch size and in every
row of a batch, the logits must be close to the exact ones, the top class must be the same unless
the exact model cannot tell the two classes apart, and the maps must correlate. Each method has its
own fidelity, because a method that divides, compares or decomposes may turn a rounding error into
a different map.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cam.agreement import LEAST, Fidelity
from cam.errors import CamError, Unfaithful
from cam.explanation import ExplainedImage, Map, Question
from cam.methods import METHODS
from cam.outputs.output import Output
from cam.passes.compiled_path import CompiledPath
from cam.targets import ClassTarget, Target

ROUNDINGS = 8
"""Largest difference between the logits of two classes that a fast path may confuse, in roundings:
see `roundings_apart`. Every layer rounds. The error of EfficientNet-Lite0's logits is 1.4 roundings
of bfloat16 (standard deviation, median of 40 samples; at most 3.1); the error of a difference of
logits is larger."""
POSITIONS = 4096
"""Largest number of a segmenter's pixels at which logits are compared."""

Explain = Callable[[Tensor, Sequence[Question]], Sequence[ExplainedImage | CamError]]


def likeness(one: ExplainedImage | CamError, other: ExplainedImage | CamError) -> float | None:
    """Return Pearson's correlation of the maps of two answers, -1 … 1; the least one of several
    maps.

    The correlation of a flat map with one that is not flat is 0. Pairs of flat maps are left out;
    if there are no other pairs, the result is None.

    Raises:
        CamError: if one of the answers is an error.
    """
    for answer in (one, other):
        if isinstance(answer, CamError):
            raise answer
    assert isinstance(one, ExplainedImage)
    assert isinstance(other, ExplainedImage)
    correlations = [
        _correlation(first.map, second.map)
        for first, second in zip(one.explanations, other.explanations, strict=True)
    ]
    return min(
        (correlation for correlation in correlations if correlation is not None), default=None
    )


def roundings_apart(logits: Tensor, said: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how far the logits of the classes `said` are below the highest logits, in roundings of
    `dtype` at the size of the largest logit: eps · max |z|.

    Args:
        logits: (C, …), the exact logits.
        said: (…), the top classes of another path.

    Returns:
        float32 (…), 0 where both paths have the same top class.
    """
    values = logits.float()
    gaps = values.amax(0) - values.gather(0, said[None])[0]
    return gaps / (values.abs().amax(0) * torch.finfo(dtype).eps).clamp(min=1e-30)


def judge(
    fast: CompiledPath, exact: Explain, images: Tensor, methods: Sequence[str]
) -> dict[str, Fidelity]:
    """Compare a fast path with the exact path: the maps of the predicted class by every method, at
    every batch size and in every row of a batch.

    The fast path explains each image at each batch size. Methods without weights decompose
    activations, which may cost more than the pass, so they run at the largest size only; the other
    methods test the same activations at each size.

    Other targets (`against`, `minus`, of probability) and signed maps are made of the same
    activations, gradients and logits; they are not judged separately.

    Args:
        fast: the fast path of a classifier or a segmenter.
        exact: a function that answers the same number of questions for each image, as
            `explain_batch` does.
        images: float (N, C, H, W), preprocessed, on the model's device; several.
        methods: names of methods that take one pass.

    Returns:
        The fidelity of each method whose maps could be compared for at least half of the images. A
        method is absent if too many of its maps are flat or if the model has no maps of it.

    Raises:
        Unfaithful: if the logits of a row or all its maps differ from the exact ones, or if the
            exact logits are all equal and cannot be compared.
        CamError: if one of the two paths cannot be used.
    """
    known = [_exactly(fast.layer, exact, image, methods) for image in images]
    # The variance is over the images as well as the classes, because there may be only one class.
    variance = float(torch.stack([output.logits for output in known]).var(correction=0))
    if not variance > 0:
        raise Unfaithful("the exact model's logits are all the same: there is nothing to compare")
    compared: dict[str, dict[int, list[_Compared]]] = {name: {} for name in methods}
    for size in fast.sizes:
        largest = size == fast.sizes[-1]
        names = [name for name in methods if largest or METHODS[name].formula == "weights"]
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
                    comparisons = _compare(known[row], own, variance, fast.dtype)
                except Unfaithful as error:
                    where = f"row {place} of a batch of {size}"
                    raise Unfaithful(f"in {where} {error}") from None
                for name, comparison in comparisons.items():
                    compared[name].setdefault(row, []).append(comparison)
    return {
        name: _fidelity(by_row.values())
        for name, by_row in compared.items()
        if 2 * len(by_row) >= len(images)
    }


class _Compared(NamedTuple):
    """A fast map compared with the exact one."""

    correlation: float
    difference: float
    """See `Fidelity.difference`."""


def _fidelity(rows: Iterable[list[_Compared]]) -> Fidelity:
    """Return the fidelity of a method from the comparisons of each image."""
    rows = list(rows)
    worst = [min(comparison.correlation for comparison in row) for row in rows]
    difference = max(comparison.difference for row in rows for comparison in row)
    return Fidelity(statistics.median(worst), min(worst), difference)


@dataclass(frozen=True, eq=False)
class _Exact:
    """The exact path's logits, target and maps for one image in a batch of one."""

    logits: Tensor
    """See `_logits_of`."""
    target: Target
    """The predicted class; for a segmenter also the pixels at which the class is predicted."""
    maps: dict[str, Map]
    """Maps by method name, without the methods that failed for this model."""


def _exactly(layer: str, exact: Explain, image: Tensor, methods: Sequence[str]) -> _Exact:
    questions = [Question((ClassTarget(),), name, (layer,)) for name in methods]
    answers = dict(zip(methods, exact(image[None], questions), strict=True))
    good = {name: answer for name, answer in answers.items() if isinstance(answer, ExplainedImage)}
    for answer in answers.values():
        if isinstance(answer, CamError) and not good:
            raise answer
    said = next(iter(good.values()))
    maps = {name: answer.explanations[0].map for name, answer in good.items()}
    return _Exact(_logits_of(said.output), said.explanations[0].target, maps)


def _compare(
    known: _Exact,
    answers: dict[str, ExplainedImage | CamError],
    variance: float,
    dtype: torch.dtype,
) -> dict[str, _Compared]:
    """Return the comparison of the maps of one row with the exact ones, by method: a correlation of
    0 where an answer is an error, no entry where both maps are flat.

    Raises:
        Unfaithful: if the logits differ from the exact ones, or all maps do.
    """
    good = {name: answer for name, answer in answers.items() if isinstance(answer, ExplainedImage)}
    for said in list(good.values())[:1]:  # all answers have the logits of the same forward pass
        _check_logits(known.logits, _logits_of(said.output), variance, dtype)
    alike = {}
    for name in answers:
        if name not in known.maps:
            continue
        if name not in good:
            alike[name] = _Compared(0.0, math.inf)
            continue
        one, other = good[name].explanations[0].map, known.maps[name]
        correlation = _correlation(one, other)
        if correlation is not None:
            most = max(float(np.abs(other).max()), 1e-30)
            alike[name] = _Compared(correlation, float(np.abs(one - other).max()) / most)
    best = max((comparison.correlation for comparison in alike.values()), default=1.0)
    if not best >= LEAST:
        raise Unfaithful(
            f"the maps correlate {best:.3f} with the exact ones, less than {LEAST}, by whichever "
            "method"
        )
    return alike


def _check_logits(exact: Tensor, fast: Tensor, variance: float, dtype: torch.dtype) -> None:
    """Compare the fast logits with the exact ones.

    Raises:
        Unfaithful: if the fast logits differ from the exact ones or have another top class.
    """
    missed, most = float((fast - exact).square().mean()) / variance, 1 - LEAST**2
    if not missed <= most:  # `most` is the variance that a correlation of LEAST leaves unexplained
        raise Unfaithful(
            f"the logits miss {missed:.3f} of the exact ones' variance; at most {most:.3f} is "
            "allowed"
        )
    apart = roundings_apart(exact, fast.argmax(0), dtype)
    # A classifier has one top class for an image; a segmenter has one for each pixel.
    if float((apart <= ROUNDINGS).float().mean()) < LEAST:
        raise Unfaithful(
            f"another class is predicted, whose exact logit is {float(apart.max()):.1f} roundings "
            f"lower; at most {ROUNDINGS} are allowed"
        )


def _logits_of(output: Output) -> Tensor:
    """Return logits (C, positions) as float32 on the CPU; for a segmenter at some of its pixels."""
    values = output.logits if output.segments is None else output.segments
    assert values is not None
    flat = values.flatten(1) if values.ndim > 1 else values[:, None]
    return flat[:, :: math.ceil(flat.shape[1] / POSITIONS)].cpu().clone()


def _correlation(one: Map, other: Map) -> float | None:
    """Return the correlation of two maps: None if both are flat, 0 if one of them is."""
    flat = [float(np.ptp(map_)) == 0 for map_ in (one, other)]
    if any(flat):
        return None if all(flat) else 0.0
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])
