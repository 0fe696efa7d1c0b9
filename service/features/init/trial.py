"""The input size and preprocessing with which a model is right about photos of known classes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from cam.hooks.inference import evaluating
from service.features.init.photos import Photos
from service.loading.sources import Built
from service.loading.transforms import IMAGENET_MEAN, IMAGENET_STD, Normalisation
from service.models.preprocessing import Preprocessing

Order = Literal["rgb", "bgr"]
ORDERS: Final[tuple[Order, ...]] = get_args(Order)
Log = NDArray[np.float64]
"""The logarithm of the probability of each photo's class, at least `LEAST_LOG`."""
LEAST_LOG: Final = -10.0
"""A model that is sure of another class is wrong, however sure it is."""
TRIALS: Final = 50
"""About the number of settings that are tried."""
FEWEST: Final = 16
"""Least number of photos with which a setting is tried."""
JUDGES: Final = 3
"""How many times as many photos judge the setting that was chosen."""
BATCH: Final = 8
SIZES: Final = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 288, 299, 320, 384)
"""Sides of inputs that are tried, in pixels."""
CLEAR: Final = 2.0
"""Least number of standard errors by which a setting must be better to be known to be."""
MUCH: Final = 0.1
"""Difference of the mean logarithm that counts where as many photos are right."""
RANGES: Final[dict[str, dict[str, Any]]] = {
    "ImageNet's mean and std": {"mean": IMAGENET_MEAN, "std": IMAGENET_STD},
    "mean and std 0.5, which is -1 to 1": {"mean": (0.5,) * 3, "std": (0.5,) * 3},
    "0 to 1": {"mean": (0.0,) * 3, "std": (1.0,) * 3},
    "0 to 255": {"mean": (0.0,) * 3, "std": (1.0,) * 3, "byte_range": True},
    "0 to 255 without ImageNet's mean": {
        "mean": (123.68, 116.779, 103.939),
        "std": (1.0,) * 3,
        "byte_range": True,
    },
}
"""What training code makes of pixels, by its name."""


@dataclass(frozen=True)
class Setting:
    """One way to prepare photos."""

    size: int
    range: str
    """A name of `RANGES`, or "" for the source's own."""
    order: Order = "rgb"

    def of(self, own: Preprocessing) -> Preprocessing:
        """Return a source's preprocessing, changed to this one. The whole photo is shown."""
        changes = {"byte_range": False, **RANGES[self.range]} if self.range else {}
        return dataclasses.replace(
            own,
            height=self.size,
            width=self.size,
            shorter_side=self.size,
            reversed=self.order == "bgr",
            **changes,
        )


@dataclass(frozen=True, eq=False)
class Accuracy:
    """How right a model is about photos."""

    log: Log
    right: float
    """Share of the photos of which the model predicts the class, 0 … 1."""


@dataclass(frozen=True, eq=False)
class TrialResult:
    """What trials have shown."""

    setting: Setting
    """The best setting; the source's own, unless another one is clearly better."""
    score: Accuracy
    own: Setting
    """The source's setting."""
    own_score: Accuracy
    photos: Photos
    """The photos that judged both."""
    is_complete: bool
    """Whether the time was enough for all settings."""

    @property
    def knows(self) -> bool:
        """Whether the model is right more often than by chance."""
        chance = 1 / len(self.photos.classes)
        spread = math.sqrt(chance * (1 - chance) / len(self.photos.images))
        return self.score.right > chance + CLEAR * spread


class Trials:
    """Tries settings of one model on photos of known classes. What was tried is remembered."""

    def __init__(self, built: Built, photos: Photos, seconds: float) -> None:
        """Prepare trials that take about so many seconds. No setting is tried after them."""
        self._built, self._photos, self._seconds = built, photos, seconds
        self._until = monotonic() + seconds
        self._size = min(built.preprocessing.height, built.preprocessing.width)
        self._known: dict[Preprocessing, Accuracy | None] = {}
        self._sizes = {self._size: True}
        self._is_late = False

    def outcome(self) -> TrialResult:
        """Return the best setting: one thing after the other is changed until nothing is better.
        Small inputs, which take less time, come first."""
        own = Setting(self._size, "")
        photos = self._photos
        self._photos = photos.first(self._affordable(own))
        start = self._photos.side or own.size
        sizes = sorted({*SIZES, start, own.size})
        manners = [(each, order) for order in ORDERS for each in ("", *RANGES)]
        best = self._best(own, (Setting(start, *manner) for manner in manners))
        while True:
            before = best
            best = self._best(best, (dataclasses.replace(best, size=size) for size in sizes))
            best = self._best(best, (Setting(best.size, *manner) for manner in manners))
            if best == before:
                break
        # More photos judge what few have chosen. What changes nothing stays as the source has it,
        # or is the photos' size: they are often kept as the model takes them.
        photos = photos.first(JUDGES * len(self._photos.images))
        found = tried(self._built, best, photos)
        for change in (
            {"order": own.order},
            {"range": own.range},
            {"size": start},
            {"size": own.size},
        ):
            simpler = dataclasses.replace(best, **change)
            if simpler != best:
                score = tried(self._built, simpler, photos)
                if not is_clear(found, score):
                    best, found = simpler, score
        own_found = tried(self._built, own, photos)
        return TrialResult(best, found, own, own_found, photos, is_complete=not self._is_late)

    def _best(self, best: Setting, others: Iterable[Setting]) -> Setting:
        """Return the best of these settings; the first one, if no other is better."""
        found = [(each, known) for each in chain([best], others) if (known := self._of(each))]
        return max(found, key=lambda pair: pair[1].log.mean())[0]

    def _of(self, setting: Setting) -> Accuracy | None:
        """Return how right the model is with a setting; None if it does not take such an input, or
        if the time is over."""
        key = setting.of(self._built.preprocessing)
        if key not in self._known:
            if self._known and monotonic() > self._until:
                self._is_late = True
                return None
            fits = self._takes(setting.size)
            self._known[key] = tried(self._built, setting, self._photos) if fits else None
        return self._known[key]

    def _takes(self, side: int) -> bool:
        if side not in self._sizes:
            self._sizes[side] = takes(self._built, side)
        return self._sizes[side]

    def _affordable(self, own: Setting) -> int:
        """Return the number of photos for which there is time."""
        few = self._photos.first(BATCH)
        tried(self._built, own, few.first(1))  # the first pass takes longer
        begun = monotonic()
        tried(self._built, own, few)
        each = (monotonic() - begun) / len(few.images)
        return int(min(max(self._seconds / TRIALS / each, FEWEST), len(self._photos.images)))


def tried(built: Built, setting: Setting, photos: Photos) -> Accuracy:
    """Return how right a model is about photos that are prepared in one way."""
    preprocessing = setting.of(built.preprocessing)
    normalise = Normalisation(preprocessing, torch.device("cpu"))
    outputs = []
    for start in range(0, len(photos.images), BATCH):
        images = photos.images[start : start + BATCH]
        pixels = np.stack([preprocessing.apply(each, "squash").pixels for each in images])
        outputs.append(logits(built, normalise(pixels)))
    logs = functional.log_softmax(torch.cat(outputs), 1).double().numpy()
    truth = np.array(photos.truth)
    log = logs[np.arange(len(truth)), truth].clip(LEAST_LOG)
    return Accuracy(log, float((logs.argmax(1) == truth).mean()))


def takes(built: Built, side: int) -> bool:
    """Return whether a model takes square inputs of a size."""
    try:
        logits(built, torch.zeros(1, 3, side, side))
    except (RuntimeError, ValueError, AssertionError, IndexError):
        return False  # as torch, timm and torchvision say it
    return True


def logits(built: Built, images: torch.Tensor) -> torch.Tensor:
    """Return a classifier's logits, float32 (N, classes); of one logit, those of its two classes.

    Raises:
        ValueError: if the model returns something else.
    """
    with torch.inference_mode(), evaluating(built.module):
        output = built.module(images.contiguous())
    if not isinstance(output, torch.Tensor) or output.ndim != 2:
        raise ValueError("the model's output is not a row of logits for each image")
    return torch.cat([-output, output], 1) / 2 if output.shape[1] == 1 else output


def is_clear(one: Accuracy, other: Accuracy) -> bool:
    """Return whether one score is better than the other on the same photos: by `CLEAR` standard
    errors of the mean difference of the logarithms, and by more photos that are right or by
    `MUCH`. A model may be a little surer of photos that were prepared in a wrong way."""
    difference = one.log - other.log
    spread = difference.std(ddof=1) / math.sqrt(len(difference))
    better = difference.mean()
    return bool(better > max(CLEAR * spread, 1e-6) and (one.right > other.right or better > MUCH))


def clearly_best(scores: Sequence[Accuracy]) -> int | None:
    """Return the number of the model that is clearly better than all others on the same photos;
    None if none is."""
    best = max(range(len(scores)), key=lambda number: scores[number].log.mean())
    others = (each for number, each in enumerate(scores) if number != best)
    return best if all(is_clear(scores[best], other) for other in others) else None
