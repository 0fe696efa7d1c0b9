"""Test-time augmentation: the mean map over an image, mirrored and not, at three brightnesses."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cam.drawing.heatmap import resize
from cam.errors import CamError, NothingDetected
from cam.explanation import Answer, AnswerSteps, Question
from cam.methods.subject import Progress
from cam.outputs.reading import AUTO, Reading
from cam.passes.onepass import explain_batch
from cam.targets import mirrored

BRIGHTNESS: Final = (1.0, 0.9, 1.1)
"""As in pytorch-grad-cam's aug_smooth: factors of the preprocessed image."""


def explain_augmented(
    model: nn.Module,
    image: Tensor,
    question: Question,
    *,
    chunk: int = 16,
    reading: Reading = AUTO,
) -> AnswerSteps:
    """Answer a question whose `smooth` is "augment" or "both", in steps: see `explain_in_steps`.

    The targets are those of the image as it is. A map is the mean of the maps of six images, each
    turned back first.
    """
    plain = replace(question, smooth="eigen" if question.smooth == "both" else "none")
    (first,) = explain_batch(model, image[None].clone(), [plain], reading=reading)
    variants = 2 * len(BRIGHTNESS)
    yield Progress(1, variants)
    if isinstance(first, CamError):
        return first
    # Not all that were asked for may be there, and one may be in several maps.
    targets = tuple({id(each.target): each.target for each in first.explanations}.values())
    width = int(image.shape[-1])
    same = replace(plain, targets=targets)
    turned = replace(plain, targets=tuple(mirrored(target, width) for target in targets))
    others = [
        (image.flip(-1) if flipped else image) * factor
        for flipped in (False, True)
        for factor in BRIGHTNESS
    ][1:]
    sums = [each.map.astype(np.float64) for each in first.explanations]
    warnings = [each.warnings for each in first.explanations]
    for start in range(0, len(others), chunk):
        some = torch.stack(others[start : start + chunk])
        flips = [start + offset + 1 >= len(BRIGHTNESS) for offset in range(len(some))]
        asked = [turned if flipped else same for flipped in flips]
        answers = explain_batch(model, some, asked, reading=reading)
        for flipped, answer in zip(flips, answers, strict=True):
            if isinstance(answer, NothingDetected):
                continue  # what is no longer found adds nothing
            if isinstance(answer, CamError):
                return answer
            for total, each in zip(sums, answer.explanations, strict=True):
                # A changed image may have a box made from another level.
                same_size = resize(each.map, *total.shape)
                total += same_size[:, ::-1] if flipped else same_size
            warnings = [
                told or each.warnings
                for told, each in zip(warnings, answer.explanations, strict=True)
            ]
        yield Progress(min(start + len(some), len(others)) + 1, variants)
    explanations = tuple(
        replace(each, map=(total / variants).astype(np.float32), warnings=told)
        for each, total, told in zip(first.explanations, sums, warnings, strict=True)
    )
    return Answer(first.output, explanations)
