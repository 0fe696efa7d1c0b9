"""Evidence layers: what else speaks for a class if the first reason is masked.

from cam import evidence_layers

for reason in evidence_layers(model, images)[0]:     # the first image's
    reason.number, reason.map, reason.probability, reason.share
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cam.api import explain
from cam.drawing.notebook import InputPicture
from cam.errors import InvalidOption, NothingDetected
from cam.evaluation.curves import substrate
from cam.evaluation.metrics import MetricOptions
from cam.explanation import Explanation
from cam.inputs import (
    Images,
    Layers,
    Preprocess,
    Targets,
    images_of,
    model_of,
    photos_of,
    reader_of,
    unwrapped,
)
from cam.reasons.cascade import Cascade, Reason, layer_of


def evidence_layers(
    model: nn.Module | Any,
    images: Images,
    *,
    method: str = "gradcam",
    layer: Layers = "auto",
    target: Targets = None,
    count: int = 3,
    threshold: float = 0.5,
    preprocess: Preprocess | None = None,
    text: Sequence[str] | None = None,
    **options: Any,
) -> list[list[Reason]]:
    """Return the reasons of `model` for each image: the evidence for its target, then the evidence
    that is left if this is masked, and so on.

    For an image x_1 and k = 1 … `count`, M_k is the map of x_k on the model's input, and V_k are
    the pixels that no earlier reason has masked:

        m_k = (M_k − min M_k) / (max M_k − min M_k) on V_k (min and max over V_k), else 0
        x_{k+1} = 0 where m_k ≥ threshold, else x_k

    0 is the value after preprocessing, which the metric `deletion` puts in a pixel's place, too.
    The target of all reasons is that of x_1, with its class, box and mask filled in. So one reads
    how much of its probability is left before each reason. A signed map is divided by its greatest
    absolute value instead.

    This is the cascade of Choi et al., "Cascading Class Activation Mapping: A Counterfactual
    Reasoning-Based Explainable Method for Comprehensive Feature Discovery", CMES 146(2), 2026, on
    the fixed model. The paper trains the model again on the masked photos before each further map,
    and finds what a model could learn without the first cue; here one finds what this model sees.

    The images share the forward passes of each reason: `count` times those of `explain`. Model and
    images are left as found.

    Args:
        images, layer, preprocess, text: see `explain`.
        method: a name in `cam.METHODS`.
        target: one target for each image: see `explain`.
        count: largest number of reasons of an image, 1 … 5.
        threshold: least value of m_k at a pixel that is masked, above 0 and below 1.
        options: the other arguments of `explain`.

    Returns:
        For each image its reasons, at least one. There are fewer than `count` if m_k is 0
        everywhere (M_k is constant on V_k, or V_k is empty), or if a detector no longer finds the
        box; a warning of the last reason says so.

    Raises:
        InvalidOption: if `count` or `threshold` cannot have its value, or if the arguments ask for
            several maps of an image.
        CamError: other errors of `explain`.
    """
    given = images
    model, preprocess = unwrapped(model, preprocess, text)
    model = model_of(model, method)
    x = images_of(photos_of(model, images, preprocess))
    size = (int(x.shape[-2]), int(x.shape[-1]))
    cascades = [Cascade(size, count, threshold) for _ in x]
    blank = torch.stack([substrate(image, MetricOptions.deletion_to) for image in x])
    resolved = np.empty(len(x), object)
    asked = {"method": method, "layer": layer, **options}
    while active := [number for number, cascade in enumerate(cascades) if cascade.open]:
        first = not cascades[0].reasons
        masked = torch.from_numpy(np.stack([cascades[number].masked for number in active]))
        seen = torch.where(masked[:, None].to(x.device), blank[active], x[active])
        found = _explained(model, seen, target if first else resolved[active], asked, first)
        if len(found) != len(active):
            raise InvalidOption(
                f"method, layer and target name {len(found) // len(active)} maps of an image; the "
                "reasons are found of one"
            )
        for number, explanation in zip(active, found, strict=True):
            if isinstance(explanation, NothingDetected):
                cascades[number].end(f"in the masked photo {explanation}")
                continue
            cascades[number].add(explanation)
            resolved[number] = explanation.target
            if name := layer_of(explanation, options.get("fuse", "none")):
                asked["layer"] = name
    return [
        [
            replace(reason, input=InputPicture(reader_of(model, given, preprocess, number)))
            for reason in cascade.reasons
        ]
        for number, cascade in enumerate(cascades)
    ]


def _explained(
    model: nn.Module, images: Tensor, targets: Any, asked: dict[str, Any], first: bool
) -> Sequence[Explanation | NothingDetected]:
    """Return the explanations of the images; of masked images, for which `targets` has a target
    each, also why there is none."""
    try:
        return explain(model, images, target=targets, **asked)
    except NothingDetected as error:
        if first:
            raise
        if len(images) == 1:
            return [error]
    alone = [
        _explained(model, images[[number]], targets[[number]], asked, first)
        for number in range(len(images))
    ]
    return list(chain(*alone))
