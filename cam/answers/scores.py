"""How good the map of a word is: insertion and deletion."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cam.answers.answer import AnswerProgress, AnswerWord, WordScores
from cam.answers.passes import blurred, likely
from cam.answers.vision_language import Asked, VisionLanguageModel
from cam.drawing.placement import resize
from cam.evaluation.localisation import energy_in, pointing_in

STEPS: Final = 10
"""Number of steps of each curve."""


def scores_of(
    model: VisionLanguageModel,
    asked: Asked,
    tokens: Sequence[int],
    word: AnswerWord,
    region: NDArray[np.bool_] | None = None,
) -> Generator[AnswerProgress, None, WordScores]:
    """Measure how the probability of a word changes while pixels are exchanged, hottest first
    (Petsiuk et al., RISE, BMVC 2018, section 4.2; for one word of an answer).

    Deletion puts the blurred photo in the pixels' place, insertion puts the pixels into the blurred
    photo. Each is the area (trapezoid) under the word's probability, divided by its probability of
    the whole photo: the tokens before it are those of the answer. 2 · `STEPS` passes: both curves
    have the photo and the blurred photo at their ends.

    Args:
        region: where the heat should be, bool (H, W) of the photo's pixels: energy and pointing are
            those of `cam.evaluation.localisation`.
    """
    assert word.map is not None  # a word without tokens is not a word
    photo = asked.photo
    height, width = photo.shape[:2]
    heat = resize(word.map, height, width)
    order = np.argsort(-heat.ravel(), kind="stable")
    without, some = blurred(photo).reshape(-1, 3), slice(word.start, word.stop)
    pixels = photo.reshape(-1, 3)
    curves: list[list[float]] = []
    done = 0
    for begin, end, steps in (
        (pixels, without, range(STEPS + 1)),
        (without, pixels, range(1, STEPS)),
    ):
        curves.append([])
        for step in steps:
            changed = begin.copy()
            first = order[: round(len(order) * step / STEPS)]
            changed[first] = end[first]
            other = model.with_photo(asked, changed.reshape(photo.shape))
            curves[-1].append(float(np.exp(likely(model, other, tokens)[some].sum())))
            done += 1
            yield AnswerProgress(done, 2 * STEPS, "scores")
    deletion, between = curves
    insertion, whole = [deletion[-1], *between, deletion[0]], deletion[0]
    areas = (float(np.trapezoid(curve, dx=1 / STEPS)) for curve in (deletion, insertion))
    lost, gained = (area / whole if whole > 0 else 0.0 for area in areas)
    if region is None:
        return WordScores(lost, gained)
    return WordScores(lost, gained, energy_in(heat, region), pointing_in(heat, region))
