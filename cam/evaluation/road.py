"""ROAD: the probability without the most and without the least relevant pixels.

Rong et al., "A Consistent and Efficient Evaluation Strategy for Attribution Methods", ICML 2022.

The noise of the imputation alone can change the value by some hundredths. So each image is imputed
with a noise and with its opposite, and the mean of the two probabilities is taken: what they depend
on linearly in the noise cancels out.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from cam.evaluation.imputation import NOISE, impute
from cam.evaluation.metrics import NOISES
from cam.evaluation.scorer import Forwards, Judged, Scorer

Shares = tuple[float, dict[str, tuple[float, ...]]]


def road(
    scorer: Scorer, judged: Judged, percentages: tuple[float, ...] | None = None
) -> Forwards[Shares]:
    """Return the mean of half the differences of the two orders, −0.5 … 0.5, over the percentages
    of the options if no others are given.

    This is what pytorch-grad-cam calls ROADCombined. The authors report the two orders, and a
    model's accuracy over many images; here it is the probability for one.
    """
    percentages = percentages or scorer.options.percentages
    least = yield from _removed(scorer, judged, percentages, most=False)
    most = yield from _removed(scorer, judged, percentages, most=True)
    value = float(np.mean([(low - high) / 2 for low, high in zip(least, most, strict=True)]))
    return value, {"morf": most, "lerf": least, "percentages": percentages}


def road_morf(scorer: Scorer, judged: Judged) -> Forwards[Shares]:
    """Return the mean probability without the most relevant pixels (MoRF), 0 … 1."""
    curve = yield from _removed(scorer, judged, scorer.options.percentages, most=True)
    return float(np.mean(curve)), {"curve": curve, "percentages": scorer.options.percentages}


def road_lerf(scorer: Scorer, judged: Judged) -> Forwards[Shares]:
    """Return the mean probability without the least relevant pixels (LeRF), 0 … 1."""
    curve = yield from _removed(scorer, judged, scorer.options.percentages, most=False)
    return float(np.mean(curve)), {"curve": curve, "percentages": scorer.options.percentages}


def _removed(
    scorer: Scorer, judged: Judged, percentages: tuple[float, ...], *, most: bool
) -> Forwards[tuple[float, ...]]:
    def work() -> Forwards[tuple[float, ...]]:
        rank = scorer.ranks(judged)
        counts = torch.tensor(
            [removed_count(percentage, rank.numel()) for percentage in percentages]
        )
        generator = torch.Generator().manual_seed(scorer.options.seed + most)
        means: list[float] = []
        group = max(scorer.chunk // NOISES, 1)
        for start in range(0, len(counts), group):
            bounds = counts[start : start + group].to(rank)[:, None, None]
            mask = rank[None] < bounds if most else rank[None] >= rank.numel() - bounds
            shape = scorer.image.shape  # one by one, so that the noise does not depend on the batch
            noise = torch.stack([torch.randn(shape, generator=generator) for _ in mask])
            noise = (NOISE * noise).to(scorer.image.device) * mask[:, None]
            filled = impute(scorer.image, mask)
            images = torch.cat([filled + noise, filled - noise])
            likely = yield from scorer.probabilities(len(images), images.__getitem__)
            means += np.reshape(likely, (NOISES, -1)).mean(0).tolist()
        return tuple(means)

    return (yield from scorer.remembered(("road", id(judged), percentages, most), work))


def removed_count(percentage: float, pixels: int) -> int:
    """Return the number of pixels that are removed: those whose value is at least the percentile.
    As in pytorch-grad-cam, a percentile that falls between two values is interpolated."""
    return pixels - math.ceil(round((pixels - 1) * (1 - percentage / 100), 6))
