"""What the model sees of an image that is multiplied by its map, and what becomes of the map.

Poppi et al., "Revisiting the Evaluation of Class Activation Mapping for Explainability", CVPR
workshops 2021; ARCC is of Domeniconi et al., "How to Evaluate and Refine your CAM", 2026.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cam.agreement import pearson
from cam.drawing.placement import resize
from cam.errors import CamError, MethodUnsuited
from cam.evaluation.metrics import ARCC_PERCENTAGES, harmonic
from cam.evaluation.road import road
from cam.evaluation.scorer import Forwards, Judged, Scorer

Parts = tuple[float | None, dict[str, float | None]]


def confidence_drop(scorer: Scorer, judged: Judged) -> Forwards[Parts]:
    """Return max(0, y − o) / y, 0 … 1, with the probabilities y of the image and o of the masked
    one."""
    seen = yield from _masked(scorer, judged)
    return _drop(scorer.whole, seen), {"whole": scorer.whole, "masked": seen}


def confidence_increase(scorer: Scorer, judged: Judged) -> Forwards[Parts]:
    """Return 1 if the masked image has a greater probability than the image, else 0."""
    seen = yield from _masked(scorer, judged)
    return float(scorer.whole < seen), {"whole": scorer.whole, "masked": seen}


def coherency(scorer: Scorer, judged: Judged) -> Forwards[Parts]:
    """Return (1 + r) / 2, 0 … 1, with Pearson's correlation r of the map and the masked image's
    map. As in the authors' code it is 0 if one of the maps is constant."""
    return (yield from _coherency(scorer, judged)), {}


def complexity(scorer: Scorer, judged: Judged) -> Forwards[Parts]:
    """Return the mean of the map, scaled to 0 … 1 by its minimum and maximum."""
    yield 0
    return _mean(judged), {}


def adcc(scorer: Scorer, judged: Judged) -> Forwards[Parts]:
    """Return the harmonic mean of coherency, 1 − complexity and 1 − confidence drop, 0 … 1."""
    alike = yield from _coherency(scorer, judged)
    seen = yield from _masked(scorer, judged)
    covered, lost = _mean(judged), _drop(scorer.whole, seen)
    parts: dict[str, float | None] = {
        "coherency": alike,
        "complexity": covered,
        "confidence_drop": lost,
    }
    return harmonic(alike, 1 - covered, 1 - lost), parts


def arcc(scorer: Scorer, judged: Judged) -> Forwards[Parts]:
    """Return the harmonic mean of coherency, 1 − complexity and twice the ROAD score, 0 … 1; 0 if
    the ROAD score is not above 0.

    The formula and the percentages are those of `ARCC` in pytorch-grad-cam 1.5.7, with which the
    authors' own example is made. It adds 1e-8 to each part; here the mean is 0 where a part is.
    """
    alike = yield from _coherency(scorer, judged)
    removed, _ = yield from road(scorer, judged, ARCC_PERCENTAGES)
    covered = _mean(judged)
    parts: dict[str, float | None] = {"coherency": alike, "complexity": covered, "road": removed}
    return harmonic(alike, 1 - covered, 2 * removed), parts


def _drop(whole: float, seen: float) -> float:
    return max(0.0, whole - seen) / whole if whole > 0 else 0.0


def _mean(judged: Judged) -> float:
    return float(judged.scaled.mean(dtype=np.float64))


def _masked_image(scorer: Scorer, judged: Judged) -> Tensor:
    return (scorer.image * torch.from_numpy(judged.scaled).to(scorer.image))[None]


def _masked(scorer: Scorer, judged: Judged) -> Forwards[float]:
    """Return the probability of the masked image."""

    def work() -> Forwards[list[float]]:
        return scorer.probabilities(1, lambda some: _masked_image(scorer, judged))

    (probability,) = yield from scorer.remembered(("masked", id(judged)), work)
    return probability


def _coherency(scorer: Scorer, judged: Judged) -> Forwards[float]:
    def work() -> Forwards[float]:
        if judged.again is None:
            raise MethodUnsuited("the map of another image cannot be made")
        (other,) = yield from judged.again(_masked_image(scorer, judged), [scorer.target])
        if isinstance(other, CamError):
            raise other
        correlation = pearson(judged.values, resize(other, *scorer.size))
        return 0.0 if correlation is None else (1 + correlation) / 2

    return (yield from scorer.remembered(("coherency", id(judged)), work))
