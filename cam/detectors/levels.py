"""Find the layers from which a detector computes its boxes.

A detector looks at its image at several scales, its levels. A box usually comes from one level
alone; at the other levels the gradient of its score is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor, nn

from cam.detectors.reading import unfiltered
from cam.hooks.capture import Capture
from cam.hooks.inference import evaluating
from cam.layers import Layer
from cam.outputs.output import Detections
from cam.outputs.outputs import outputs_of, size_of
from cam.outputs.reading import AUTO, Reading
from cam.positions.flow import ancestors, behind, ends

_SAMPLE: Final = 4
"""Number of boxes of an image that are traced one by one to their levels."""


@dataclass(frozen=True)
class Levels:
    """Names of the layers that a detector's boxes come from, in execution order. They are found
    with one image."""

    direct: tuple[str, ...]
    """Layers from which both the scores and the positions of the boxes are computed, the scores
    not only through another such layer."""
    common: tuple[str, ...]
    """Layers on which every box depends."""


def with_levels(
    model: nn.Module, image: Tensor, layers: list[Layer], reading: Reading
) -> list[Layer]:
    """Return a detector's layers with `level` and `common` set."""
    usable = [layer.name for layer in layers if layer.eligible]
    levels = levels_of(model, image, usable, reading)
    if levels is None:
        return layers
    return [
        replace(layer, level=layer.name in levels.direct, common=layer.name in levels.common)
        for layer in layers
    ]


def levels_of(
    model: nn.Module, image: Tensor, layers: Sequence[str], reading: Reading = AUTO
) -> Levels | None:
    """Return the levels of a detector among `layers`.

    A layer of the head is not a level if only the scores or only the positions of the boxes depend
    on it. The detector's score thresholds are 0 while the function runs: see
    `cam.detectors.reading.unfiltered`. The function needs one forward pass, two backward passes,
    and one backward pass through the head for each of a few small and large boxes.

    Args:
        image: float (1, C, H, W), preprocessed, on the model's device and in its dtype.
        layers: names in execution order. Each layer runs once and returns a tensor.
        reading: how the model's output is read.

    Returns:
        The levels, or None if the model detects nothing in the image and the levels are unknown.
    """
    with evaluating(model), unfiltered(model), Capture(model, layers) as capture:
        (output,) = outputs_of(model(image), size=size_of(image), reading=reading, model=model)
        outputs = capture.outputs
    said = output.detections
    if said is None or not len(said.scores):
        return None
    graph = behind(said.scores, outputs) & behind(said.boxes, outputs)
    # The graph alone is not enough: a head may put scores and positions into one tensor.
    weights = torch.linspace(1, 2, said.boxes.numel()).to(said.boxes).reshape(said.boxes.shape)
    of_scores = _reached_by(said.scores.sum(), outputs)
    of_boxes = _reached_by((said.boxes * weights).sum(), outputs)
    both = [name for name in layers if name in graph and name not in of_scores ^ of_boxes]
    nearest = behind(said.scores, {name: outputs[name] for name in both}, nearest=True)
    direct = tuple(name for name in both if name in nearest)
    lineage = ancestors({name: outputs[name] for name in both})
    reached = _reached_by_each(said, {name: outputs[name] for name in direct})
    sampled = [ends(names, lineage) for names in reached]
    # Boxes of other images may come from a level that no sampled box comes from.
    unseen = set(direct).difference(*sampled)
    needed = [*sampled, *({name} for name in unseen)]
    common = tuple(
        name
        for name in both
        if all(any(name == end or name in lineage[end] for end in level) for level in needed)
    )
    return Levels(direct, common)


def _reached_by_each(said: Detections, outputs: Mapping[str, Tensor]) -> list[set[str]]:
    """Return the layers with a non-zero gradient for each of a few small and large boxes. A box
    with no gradient, whose score is saturated, is left out."""
    if not outputs:
        return []
    areas = (said.boxes[:, 2:] - said.boxes[:, :2]).detach().prod(1)
    places = torch.linspace(0, len(areas) - 1, min(_SAMPLE, len(areas))).round().long()
    levels = []
    for score in said.scores[areas.argsort()[places.to(areas.device)]]:
        levels.append(_reached_by(score, outputs))
    return [level for level in levels if level]


def _reached_by(number: Tensor, outputs: Mapping[str, Tensor]) -> set[str]:
    """Return the layers at which the gradient of a number is not all zero."""
    if not number.requires_grad or not outputs:
        return set()
    gradients = torch.autograd.grad(
        number, list(outputs.values()), retain_graph=True, allow_unused=True
    )
    pairs = zip(outputs, gradients, strict=True)
    return {name for name, gradient in pairs if gradient is not None and bool(gradient.any())}
