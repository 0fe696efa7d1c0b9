"""The metrics of maps: what each measures, which value is better, and by which convention.

Nothing here needs torch: the table names the functions that compute the values, and
`cam.evaluation.evaluate` imports them when a map is scored.

A package may add metrics of its own: each entry point of the group `gradcam.metrics` is a `Metric`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cam.counts import counted
from cam.errors import InvalidOption
from cam.extensions import added
from cam.methods.method import Function

GROUP: Final = "gradcam.metrics"
"""The group of entry points whose objects are further metrics."""

Better = Literal["higher", "lower"]
Substrate = Literal["zero", "blur", "mean"]
Baseline = Literal["random", "gaussian", "edges", "uniform"]
BASELINES: Final[tuple[Baseline, ...]] = get_args(Baseline)
DEFAULTS: Final = ("insertion", "deletion", "stability")
"""Names of the metrics that are computed if none are named."""
FINE_STEP: Final = 224
"""Pixels in a step of a fine curve, as in the code of Petsiuk et al. for 224 × 224 pixels."""
PERCENTAGES: Final = tuple(float(percentage) for percentage in range(10, 100, 10))
ARCC_PERCENTAGES: Final = (20.0, 40.0, 60.0, 80.0)
"""Percentages of the pixels that ROAD removes for ARCC, as in its authors' code."""
MOST_STEPS: Final = 1000
MOST_SAMPLES: Final = 1000
JPEG_QUALITY: Final = 50
CROP: Final = 7 / 8
"""Share of each side that the crop of `stability` keeps, around the centre."""
SQUARE: Final = 0.25
"""Share of each side that a square of `infidelity` has."""
SQUARES: Final = "squares"
"""Name of the passes of `infidelity`, which all maps of an image share."""
VIEWS: Final = ("flip", "crop", "jpeg")
NOISES: Final = 2
"""Noises with which ROAD imputes each image: one and its opposite."""
RANDOM_MAPS: Final = 59
"""Turned maps that a score is compared with where each takes one forward pass at most (see
`cam.evaluation.baselines.misplaced`). Of 59 and the map itself, three are one in twenty."""
FEW_RANDOM_MAPS: Final = 7
"""Turned maps where each takes more passes, or maps of changed images."""


@dataclass(frozen=True, eq=False)
class MetricOptions:
    """What a caller can choose about the metrics. The defaults are the published conventions."""

    steps: int | Literal["fine"] = 30
    """Number of steps of a curve of `insertion` or `deletion`, 1 … `MOST_STEPS`; `fine` for steps
    of `FINE_STEP` pixels."""
    deletion_to: Substrate = "zero"
    """What `deletion` puts in place of a pixel: zero after preprocessing, the blurred image, or the
    image's mean colour."""
    insertion_from: Substrate = "blur"
    """The image into which `insertion` puts the pixels."""
    percentages: tuple[float, ...] = PERCENTAGES
    """Percentages of the pixels that `road` removes, each above 0 and below 100."""
    samples: int = 10
    """Number of noisy images of `sensitivity`."""
    radius: float = 0.02
    """Greatest change of a value of the preprocessed image by the noise of `sensitivity`, above
    0."""
    squares: int = 32
    """Number of squares of `infidelity`, 2 or more."""
    scale_free: bool = True
    """Whether `sensitivity` is relative to the map's norm, and `infidelity` scales the map by the
    factor that makes it least."""
    region: NDArray[np.bool_] | None = None
    """Pixels of the model's input, bool (H, W), where the heat should be, for `energy` and
    `pointing`."""
    baselines: tuple[Baseline, ...] = BASELINES
    """Maps that are scored for comparison."""
    random_maps: int | None = None
    """Number of turned maps, 1 … `MOST_SAMPLES`, if `random` is among the baselines; None for
    `RANDOM_MAPS`, or `FEW_RANDOM_MAPS` of costly metrics. With fewer than two, there is no
    verdict on chance."""
    seed: int = 0
    """Seed of all random numbers: the same image, map and seed give the same scores."""

    def check(self) -> None:
        """Check the values.

        Raises:
            InvalidOption: if one cannot be; the message names it and says what is allowed.
        """
        if self.steps != "fine" and not _is_whole(self.steps, 1, MOST_STEPS):
            raise InvalidOption(
                f"steps is {self.steps!r:.80}; it can be 1 to {MOST_STEPS}, or 'fine'"
            )
        for name in ("deletion_to", "insertion_from"):
            if getattr(self, name) not in get_args(Substrate):
                allowed = ", ".join(get_args(Substrate))
                raise InvalidOption(f"{name} is {getattr(self, name)!r:.80}; it can be {allowed}")
        if not self.percentages or not all(0 < percentage < 100 for percentage in self.percentages):
            raise InvalidOption(
                "percentages has one value or more, each above 0 and below 100; it is "
                f"{list(self.percentages)!r:.80}"
            )
        if len(self.percentages) > 99:
            raise InvalidOption(
                f"percentages has {len(self.percentages)} values; at most 99 are allowed"
            )
        for name, least, most in (
            ("samples", 1, MOST_SAMPLES),
            ("squares", 2, MOST_SAMPLES),
            ("random_maps", 1, MOST_SAMPLES),
            ("seed", 0, 2**31 - 1),
        ):
            if name == "random_maps" and self.random_maps is None:
                continue
            if not _is_whole(getattr(self, name), least, most):
                raise InvalidOption(
                    f"{name} is {getattr(self, name)!r:.80}; it can be {least} to {most}"
                )
        if not 0 < self.radius <= 10:
            raise InvalidOption(f"radius is {self.radius}; it is above 0 and at most 10")
        unknown = [name for name in self.baselines if name not in BASELINES]
        if unknown:
            raise InvalidOption(
                f"there is no baseline {unknown[0]!r:.80}; the baselines are {', '.join(BASELINES)}"
            )


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True)
class Metric:
    """One way to say how good a map is."""

    name: str
    summary: str
    """One sentence: what the value says."""
    better: Better
    convention: Callable[[MetricOptions], str]
    """Returns how the value is computed, with the source."""
    function: Function
    """The function that computes the value: it takes a `cam.evaluation.scorer.Scorer` and the map,
    a `cam.evaluation.scorer.Judged`. It is a generator that yields the number of forward passes
    that it has made since, and returns the value, or None, and the numbers that it is made of."""
    forwards: Callable[[MetricOptions, int], Mapping[str, int]] = lambda options, pixels: {}
    """Returns the numbers of forward passes for one map of so many pixels, without those that make
    maps, by a name that metrics with the same passes share."""
    maps: Callable[[MetricOptions], int] = lambda options: 0
    """Returns how many maps are made for changed images. If it is not 0, a map whose method is not
    known cannot be scored."""
    sharing: str | None = None
    """Name that metrics with the same maps of changed images share."""
    baselines: tuple[Baseline, ...] = BASELINES
    """Baselines whose value is not known beforehand."""
    options: tuple[str, ...] = ()
    """Names of the options that have an effect."""
    needs: Literal["region", "completeness"] | None = None
    faithfulness: bool = False
    """Whether the value tells whether the map shows what the model uses, so that audits compare
    methods by it."""
    without: str = "the map is constant"
    """Why it has no value for some maps, where its function returns None."""

    def random_maps(self, options: MetricOptions) -> int:
        """Return the number of turned maps with which a score is compared."""
        if options.random_maps is not None:
            return options.random_maps
        passes = sum(n for part, n in self.forwards(options, 10**6).items() if part != SQUARES)
        return FEW_RANDOM_MAPS if passes > 1 or self.maps(options) else RANDOM_MAPS


@dataclass(frozen=True)
class Score:
    """The value of a metric for one map."""

    value: float | None
    """None if the metric has no value for this map; the warning then says why."""
    baselines: Mapping[str, float | None] = field(default_factory=dict)
    """Name of a baseline → its value on the same image; of `random`, the mean of `chance`."""
    details: Mapping[str, float | tuple[float, ...] | None] = field(default_factory=dict)
    """The numbers that the value is made of, such as the points of a curve."""
    warning: str | None = None
    chance: tuple[float, ...] = ()
    """Values of the same map turned and mirrored, on the same image."""


Scores = dict[str, Score]
"""Name of a metric → score."""


def harmonic(*values: float) -> float:
    """Return the harmonic mean of values ≥ 0; it is 0 if one of them is 0."""
    if min(values) <= 0:
        return 0.0
    return len(values) / sum(1 / value for value in values)


def _substrate(what: Substrate) -> str:
    return {
        "zero": "zero after preprocessing",
        "blur": "the image blurred by an 11 × 11 Gaussian kernel of σ = 5",
        "mean": "the image's mean colour",
    }[what]


def _steps(options: MetricOptions) -> str:
    if options.steps == "fine":
        return f"steps of {FINE_STEP} pixels"
    return counted(options.steps, "step")


def _curve(what: str) -> Callable[[MetricOptions], str]:
    def convention(options: MetricOptions) -> str:
        done = (
            f"the most relevant pixels are replaced first, by {_substrate(options.deletion_to)}"
            if what == "deletion"
            else f"the most relevant pixels come first, into {_substrate(options.insertion_from)}"
        )
        return (
            f"Petsiuk et al., RISE, BMVC 2018: area (trapezoid) under the probability; {done}; "
            f"{_steps(options)}; pixels of equal relevance in random order"
        )

    return convention


def _road(order: str) -> Callable[[MetricOptions], str]:
    def convention(options: MetricOptions) -> str:
        shares = ", ".join(f"{percentage:g}" for percentage in options.percentages)
        value = {
            "both": "mean over the percentages of half the difference of the probability without "
            "the least and without the most relevant pixels",
            "most": "mean over the percentages of the probability without the most relevant pixels",
            "least": "mean over the percentages of the probability without the least relevant "
            "pixels",
        }[order]
        return (
            f"Rong et al., ROAD, ICML 2022: {value}; {shares} % removed, imputed by noisy linear "
            "imputation (weights 1/6 and 1/12, noise of σ = 0.01), the mean over a noise and its "
            "opposite; pixels of equal relevance in random order"
        )

    return convention


def step_of(options: MetricOptions, pixels: int) -> int:
    """Return the number of pixels in a step of a curve."""
    return FINE_STEP if options.steps == "fine" else max(-(-pixels // options.steps), 1)


def _points(curve: str) -> Callable[[MetricOptions, int], Mapping[str, int]]:
    """Return the passes of a curve between its two ends, which all maps of the image share."""
    return lambda options, pixels: {curve: -(-pixels // step_of(options, pixels)) - 1}


def _shares(*orders: str) -> Callable[[MetricOptions, int], Mapping[str, int]]:
    return lambda options, pixels: dict.fromkeys(orders, NOISES * len(options.percentages))


_POPPI: Final = "Poppi et al., CVPR workshops 2021"
_MASKED: Final = (
    "the preprocessed image is multiplied by the map, which is scaled to 0 … 1 by its minimum and "
    "maximum"
)

_BUILT_IN: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        Metric(
            "insertion",
            "How quickly the probability comes back when the hottest pixels come first.",
            "higher",
            _curve("insertion"),
            forwards=_points("insertion"),
            options=("steps", "insertion_from"),
            function="cam.evaluation.curves:insertion",
            faithfulness=True,
        ),
        Metric(
            "deletion",
            "How quickly the probability falls when the hottest pixels go first.",
            "lower",
            _curve("deletion"),
            forwards=_points("deletion"),
            options=("steps", "deletion_to"),
            function="cam.evaluation.curves:deletion",
            faithfulness=True,
        ),
        Metric(
            "road",
            "How much more the hottest pixels count than the coldest, when what is removed leaves "
            "no edge.",
            "higher",
            _road("both"),
            forwards=_shares("most", "least"),
            options=("percentages",),
            function="cam.evaluation.road:road",
            faithfulness=True,
        ),
        Metric(
            "road_morf",
            "What is left of the probability without the most relevant pixels.",
            "lower",
            _road("most"),
            forwards=_shares("most"),
            options=("percentages",),
            function="cam.evaluation.road:road_morf",
            faithfulness=True,
        ),
        Metric(
            "road_lerf",
            "What is left of the probability without the least relevant pixels.",
            "higher",
            _road("least"),
            forwards=_shares("least"),
            options=("percentages",),
            function="cam.evaluation.road:road_lerf",
            faithfulness=True,
        ),
        Metric(
            "confidence_drop",
            "Share of the probability that is lost if only the map's part of the image is seen.",
            "lower",
            lambda options: f"{_POPPI}: max(0, y − o) / y of the probabilities; {_MASKED}",
            forwards=lambda options, pixels: {"masked": 1},
            function="cam.evaluation.masking:confidence_drop",
            faithfulness=True,
        ),
        Metric(
            "confidence_increase",
            "Whether the model is surer if only the map's part of the image is seen: 1 or 0.",
            "higher",
            lambda options: f"{_POPPI}: 1 if y < o, else 0; {_MASKED}",
            forwards=lambda options, pixels: {"masked": 1},
            function="cam.evaluation.masking:confidence_increase",
            faithfulness=True,
        ),
        Metric(
            "coherency",
            "How alike the map is to the map of the image that it masks.",
            "higher",
            lambda options: (
                f"{_POPPI}: (1 + Pearson's correlation) / 2 of the two maps at the "
                f"input's size; {_MASKED}"
            ),
            maps=lambda options: 1,
            baselines=("random", "edges"),
            function="cam.evaluation.masking:coherency",
            sharing="again",
        ),
        Metric(
            "complexity",
            "Share of the image that the map covers.",
            "lower",
            lambda options: (
                f"{_POPPI}: mean of the map, scaled to 0 … 1 by its minimum and "
                "maximum, at the input's size"
            ),
            baselines=("gaussian", "edges", "uniform"),  # a map that is turned is as large
            function="cam.evaluation.masking:complexity",
        ),
        Metric(
            "adcc",
            "The harmonic mean of coherency, 1 − complexity and 1 − confidence drop.",
            "higher",
            lambda options: (
                f"{_POPPI}: 3 / (1 / coherency + 1 / (1 − complexity) + 1 / (1 − drop)); {_MASKED}"
            ),
            forwards=lambda options, pixels: {"masked": 1},
            maps=lambda options: 1,
            function="cam.evaluation.masking:adcc",
            sharing="again",
            faithfulness=True,
        ),
        Metric(
            "arcc",
            "The harmonic mean of coherency, 1 − complexity and twice the ROAD score.",
            "higher",
            lambda options: (
                "Domeniconi et al., 2026: 3 / (1 / coherency + 1 / (1 − complexity) + "
                "1 / (2 road)), 0 if road ≤ 0; "
                + _road("both")(replace(options, percentages=ARCC_PERCENTAGES))
                + f"; {_MASKED}"
            ),
            forwards=lambda options, pixels: dict.fromkeys(
                ("arcc most", "arcc least"), NOISES * len(ARCC_PERCENTAGES)
            ),
            maps=lambda options: 1,
            function="cam.evaluation.masking:arcc",
            sharing="again",
            faithfulness=True,
        ),
        Metric(
            "sensitivity",
            "How much the map changes at most when the image changes too little to see.",
            "lower",
            lambda options: (
                "Yeh et al., NeurIPS 2019 (sensitivity-max): greatest "
                + ("‖m − m′‖ / ‖m‖" if options.scale_free else "‖m − m′‖")
                + f" over {counted(options.samples, 'image')} with uniform noise of "
                f"±{options.radius:g} on the preprocessed image; maps at the layer's size, not "
                "scaled"
            ),
            maps=lambda options: options.samples,
            baselines=("edges",),
            options=("samples", "radius", "scale_free"),
            function="cam.evaluation.perturbation:sensitivity",
            without="the map is zero everywhere",
        ),
        Metric(
            "infidelity",
            "How far the heat of a square is from what the probability loses without the square.",
            "lower",
            lambda options: (
                "Yeh et al., NeurIPS 2019: mean of (Σ heat in the square − loss of "
                f"probability)² over {options.squares} random squares of {SQUARE:g} of each side, "
                "set to zero after preprocessing; "
                + (
                    "the heat is scaled by the factor that makes the mean least"
                    if options.scale_free
                    else "the heat is not scaled"
                )
            ),
            forwards=lambda options, pixels: {SQUARES: options.squares},
            options=("squares", "scale_free"),
            function="cam.evaluation.perturbation:infidelity",
            faithfulness=True,
        ),
        Metric(
            "stability",
            "How alike the maps of the same image mirrored, cropped and compressed are.",
            "higher",
            lambda options: (
                "mean Spearman correlation of the map with the maps, brought back, of "
                f"the image mirrored, of its central {CROP:g} of each side, and of the image as "
                f"JPEG of quality {JPEG_QUALITY}"
            ),
            maps=lambda options: len(VIEWS),
            baselines=("edges",),
            function="cam.evaluation.stability:stability",
            without="the map, or that of each changed image, is constant",
        ),
        Metric(
            "energy",
            "Share of the heat that lies inside the region.",
            "higher",
            lambda options: (
                "Wang et al., Score-CAM, CVPR workshops 2020 (energy-based pointing "
                "game): Σ heat inside / Σ heat, of the heat above 0 at the input's size"
            ),
            needs="region",
            function="cam.evaluation.localisation:energy",
            without="the map has no heat above 0",
        ),
        Metric(
            "pointing",
            "Whether the hottest pixel lies inside the region: 1 or 0.",
            "higher",
            lambda options: (
                "Zhang et al., Excitation Backprop, ECCV 2016 (pointing game), without "
                "a margin, at the input's size"
            ),
            needs="region",
            function="cam.evaluation.localisation:pointing",
        ),
        Metric(
            "completeness",
            "How far the attributions are from adding up to what they should.",
            "lower",
            lambda options: (
                "|Σ attributions − difference of the scores| / |difference of the "
                "scores|, for methods that promise that the two are equal"
            ),
            baselines=(),
            needs="completeness",
            function="cam.evaluation.localisation:completeness",
            without="the attributions should add up to 0",
        ),
    )
}

METRICS: Final[Mapping[str, Metric]] = _BUILT_IN | {
    metric.name: metric for metric in added(GROUP, Metric, __name__, _BUILT_IN)
}
"""Name → metric, those of other packages last."""


def metric_named(name: str) -> Metric:
    """Return the metric of this name.

    Raises:
        InvalidOption: if there is none; the message names all.
    """
    if name not in METRICS:
        raise InvalidOption(
            f"there is no metric {name!r:.80}; the metrics are {', '.join(METRICS)}"
        )
    return METRICS[name]
