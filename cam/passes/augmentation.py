"""Test-time augmentation: the mean map of an image and its mirror image at three brightnesses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cam.drawing.heatmap import resize
from cam.errors import CamError, NothingDetected
from cam.explanation import Answer, AnswerSteps, Question
from cam.methods.progress import Progress
from cam.outputs.reading import AUTO, Reading
from cam.passes.onepass import explain_batch
from cam.targets import mirrored

BRIGHTNESS: Final = (1.0, 0.9, 1.1)
"""Factors that the preprocessed image is multiplied by, as in pytorch-grad-cam's aug_smooth."""


def explain_augmented(
    model: nn.Module,
    image: Tensor,
    question: Question,
    *,
    chunk: int = 16,
    reading: Reading = AUTO,
) -> AnswerSteps:
    """Answer a question whose `smooth` is "augment" or "both", in steps: see `explain_in_steps`.

    The targets are resolved on the original image. Each map is the mean of the maps of six
    variants of the image; the maps of mirrored variants are mirrored back first.
    """
    plain = replace(question, smooth="eigen" if question.smooth == "both" else "none")
    (first,) = explain_batch(model, image[None].clone(), [plain], reading=reading)
    variants = 2 * len(BRIGHTNESS)
    yield Progress(1, variants)
    if isinstance(first, CamError):
        return first
    # Some targets of the question may have no explanation, and some may have several.
    targets = tuple(
        {id(explanation.target): explanation.target for explanation in first.explanations}.values()
    )
    width = int(image.shape[-1])
    same = replace(plain, targets=targets)
    turned = replace(plain, targets=tuple(mirrored(target, width) for target in targets))
    others = [
        (image.flip(-1) if flipped else image) * factor
        for flipped in (False, True)
        for factor in BRIGHTNESS
    ][1:]
    sums = [explanation.map.astype(np.float64) for explanation in first.explanations]
    warnings = [explanation.warnings for explanation in first.explanations]
    for start in range(0, len(others), chunk):
        some = torch.stack(others[start : start + chunk])
        flips = [start + offset + 1 >= len(BRIGHTNESS) for offset in range(len(some))]
        asked = [turned if flipped else same for flipped in flips]
        answers = explain_batch(model, some, asked, reading=reading)
        for flipped, answer in zip(flips, answers, strict=True):
            if isinstance(answer, NothingDetected):
                continue  # a target that this variant does not show adds nothing to the sum
            if isinstance(answer, CamError):
                return answer
            for total, explanation in zip(sums, answer.explanations, strict=True):
                # On a changed image the detector may make the box from another level.
                same_size = resize(explanation.map, *total.shape)
                total += same_size[:, ::-1] if flipped else same_size
            warnings = [
                told or explanation.warnings
                for told, explanation in zip(warnings, answer.explanations, strict=True)
            ]
        yield Progress(min(start + len(some), len(others)) + 1, variants)
    explanations = tuple(
        replace(explanation, map=(total / variants).astype(np.float32), warnings=told)
        for explanation, total, told in zip(first.explanations, sums, warnings, strict=True)
    )
    return Answer(first.output, explanations)
