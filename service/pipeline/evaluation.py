"""Evaluation of maps: from parameters to the options of metrics, and from scores to schemas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam.evaluation.metrics import METRICS, Metric, MetricOptions, Score, Scores, harmonic
from cam.evaluation.verdict import COMPARED, in_words, percentile, verdict
from cam.targets import pixels_in
from service.core import schemas
from service.core.bootstrap import interval
from service.core.choices import Fit
from service.core.errors import InvalidMap, InvalidRegion, Problem, UnsuitedMetric
from service.models.audited import Audited
from service.models.preprocessing import ModelInput
from service.pipeline.coordinates import box_on_input, mask_on_input
from service.pipeline.evaluate_parameters import EvaluateParameters, RegionObject
from service.pipeline.images import decode_base64, picture_of

Map = NDArray[np.float32]
MOST_BYTES: Final = 400_000_000
PARTS: Final = ("coherency", "complexity", "confidence_drop")


def require_suited(metrics: Sequence[str], parameters: EvaluateParameters | None = None) -> None:
    """Check that the metrics can judge the maps.

    Args:
        parameters: those of `:evaluate`; None for `:explain`, which has no region.

    Raises:
        UnsuitedMetric: if a metric lacks its region, or makes maps and the map was sent.
        InvalidMap: if there are several targets, methods or layers for the map that was sent.
    """
    named = [METRICS[name] for name in metrics]
    if parameters is None or parameters.region is None:
        lacking = [metric.name for metric in named if metric.needs == "region"]
        if lacking:
            where = "" if parameters else ", which only :evaluate takes"
            raise UnsuitedMetric(
                f"metric {lacking[0]!r} needs `region`, the box or mask where the heat should "
                f"be{where}"
            )
    if parameters is None or parameters.map is None:
        return
    if parameters.maps != 1:
        raise InvalidMap(
            f"the parameters ask for {parameters.maps} maps, and one was sent; name one target, "
            "and leave out method and layer"
        )
    able = [name for name, metric in METRICS.items() if not _needs_method(metric)]
    for metric in named:
        if _needs_method(metric):
            raise UnsuitedMetric(
                f"metric {metric.name!r} needs to know how the map was made, and a map that was "
                f"sent does not tell; it can be judged by {', '.join(able)}"
            )


def _needs_method(metric: Metric) -> bool:
    return metric.needs == "completeness" or metric.maps(MetricOptions()) > 0


def options_of(
    parameters: EvaluateParameters, photo: Image.Image, seen: ModelInput, *, max_pixels: int
) -> MetricOptions:
    """Return the options of the metrics, with the region in the input's pixels.

    Raises:
        InvalidRegion: if the region is not on the photo, or the model sees nothing of it.
    """
    region = None
    if parameters.region is not None:
        region = region_on_input(parameters.region, photo, seen, max_pixels=max_pixels)
    return MetricOptions(
        steps=parameters.steps,
        deletion_to=parameters.deletion_to,
        insertion_from=parameters.insertion_from,
        percentages=tuple(parameters.percentages),
        samples=parameters.samples,
        radius=parameters.radius,
        squares=parameters.squares,
        scale_free=parameters.scale_free,
        region=region,
        baselines=tuple(dict.fromkeys(parameters.baselines)),
        seed=parameters.seed,
    )


def region_on_input(
    region: RegionObject, photo: Image.Image, seen: ModelInput, *, max_pixels: int
) -> NDArray[np.bool_]:
    """Return the pixels of the model's input that lie in a region of the photo, bool (H, W).

    Raises:
        InvalidRegion: if the region is not on the photo, or the model sees nothing of it.
    """
    try:
        if region.mask is not None:
            white = picture_of(region.mask.b64, "region's mask", max_pixels=max_pixels)
            return mask_on_input(white, photo, seen)
        assert region.box is not None
        inside = pixels_in(box_on_input(region.box, photo, seen), *seen.pixels.shape[:2])
    except Problem as problem:
        raise InvalidRegion(problem.detail) from None
    if not inside.any():
        raise InvalidRegion("the box has no pixel that the model sees")
    return inside


def map_on_input(b64: str, photo: Image.Image, seen: ModelInput) -> Map:
    """Return a map that was sent, on the pixels of the model's input, float32 (H, W).

    A map over the photo is read bilinearly at the centres of the input's pixels; where the input
    is a border around the photo, it is 0.

    Raises:
        InvalidMap: if it is no NumPy file, no finite numbers, or of another size.
    """
    height, width = seen.pixels.shape[:2]
    sizes = {(height, width), (photo.height, photo.width)}
    said = (
        f"a map has {photo.height} × {photo.width} numbers (the photo's pixels) or "
        f"{height} × {width} (the model's input)"
    )
    try:
        file = decode_base64(b64)
        shape = _shape_of(file)
        if shape not in sizes:
            raise InvalidMap(f"the map has the shape {shape}; {said}")
        values = np.load(BytesIO(file), allow_pickle=False)
        values = np.ascontiguousarray(values, np.float32)
    except Problem:
        raise
    except Exception as error:  # NumPy parses the header as Python, which fails in many ways
        reason = " ".join(str(error).split())[:120]
        raise InvalidMap(
            f"the map is not a NumPy .npy file of real numbers in base64: {reason}"
        ) from None
    if not np.isfinite(values).all():
        raise InvalidMap("the map has values that are NaN or infinite")
    if values.shape != (photo.height, photo.width):
        return values
    across = (seen.box.right - seen.box.left) / width
    down = (seen.box.bottom - seen.box.top) / height
    if max(across, down) > 1:  # each of the input's pixels stands for several of the photo's
        blur = (max(across / 2, 0.1), max(down / 2, 0.1))
        values = cv2.GaussianBlur(values, (0, 0), blur[0], sigmaY=blur[1])
    rows = (np.arange(height) + 0.5) * down + seen.box.top - 0.5
    columns = (np.arange(width) + 0.5) * across + seen.box.left - 0.5
    # cv2.remap takes no side of 32,767 pixels or more.
    placed = _read(_read(values, rows).T, columns).T
    if not np.isfinite(placed).all():
        raise InvalidMap("the map has values that are too large for float32")
    return np.ascontiguousarray(placed, np.float32)


def _read(values: Map, positions: NDArray[np.float64]) -> Map:
    """Read the rows of an array at positions between them, linearly; it is 0 beyond its ends."""
    lower = np.floor(positions).astype(np.int64)
    fraction = (positions - lower).astype(np.float32)[:, None]

    def at(rows: NDArray[np.int64]) -> Map:
        inside = (rows >= 0) & (rows < len(values))
        map_: Map = values[rows.clip(0, len(values) - 1)] * inside[:, None]
        return map_

    return at(lower) * (1 - fraction) + at(lower + 1) * fraction


def _shape_of(file: bytes) -> tuple[int, ...]:
    """Return the shape of the array in a NumPy file, from its header alone.

    Raises:
        ValueError: if it is no NumPy file, or its numbers are not real.
    """
    stream = BytesIO(file)
    version = np.lib.format.read_magic(stream)
    read = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read(stream)
    if dtype.kind not in "fiub":
        raise ValueError(f"its numbers are {dtype}")
    if math.prod(shape) * dtype.itemsize > MOST_BYTES:
        raise ValueError("it is too large")
    return shape


def describe_scores(
    scores: Scores, options: MetricOptions, audited: Audited | None = None, fit: Fit | None = None
) -> dict[str, schemas.Score]:
    """Return the JSON schema objects of a map's scores.

    Args:
        audited: what an audit of the model found, if there was one.
        fit: how the photo was fitted to the model's input; needed where there was an audit.
    """
    return {name: _describe(name, score, options, audited, fit) for name, score in scores.items()}


def _describe(
    name: str, score: Score, options: MetricOptions, audited: Audited | None, fit: Fit | None
) -> schemas.Score:
    metric = METRICS[name]
    value, warning = _finite(score.value), score.warning
    if value is None and warning is None:
        warning = "the value is not finite"
    among = percentile(name, score) if value is not None else None
    return schemas.Score(
        value=value,
        better=metric.better,
        convention=metric.convention(options),
        baselines={name: _finite(other) for name, other in score.baselines.items()},
        verdict=_verdict(name, score, options, audited, fit) if value is not None else None,
        percentile=None if among is None else round(100 * among, 1),
        random_maps=len(score.chance),
        details={
            name: list(other) if isinstance(other, tuple) else _finite(other)
            for name, other in score.details.items()
        },
        warning=warning,
    )


def _verdict(
    name: str, score: Score, options: MetricOptions, audited: Audited | None, fit: Fit | None
) -> str | None:
    words = verdict(name, score)
    if audited is None or score.value is None:
        return words
    rank = audited.percentile(name, score.value, METRICS[name].convention(options), fit)
    if rank is None:
        return words
    told = f"{_ordinal(rank)} percentile of the audit"
    return f"{words}; {told}" if words else told


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def score_lines(scores: Mapping[str, schemas.Score] | None) -> list[str]:
    """Return a line for each score, for pictures: the value, and that of a map that is chance."""
    lines = []
    for name, score in (scores or {}).items():
        if score.value is None:
            continue
        compared = [
            f"{words} {value:.3g}"
            for name, words in (("random", "chance"), ("edges", "edges"))
            if (value := score.baselines.get(name)) is not None
        ]
        beside = f" ({', '.join(compared)})" if compared else ""
        lines.append(f"{name} {score.value:.3g}{beside}")
    return lines


def summarise(evaluations: Iterable[schemas.Evaluation]) -> list[schemas.EvaluationSummary]:
    """Return the means over several images, for each method and layer."""
    groups: dict[tuple[str | None, str | None], list[schemas.Evaluation]] = {}
    for evaluation in evaluations:
        groups.setdefault((evaluation.method, evaluation.layer), []).append(evaluation)
    sentences = []
    for (method, layer), members in groups.items():
        if len({member.instance for member in members}) < 2:
            continue
        scores = {
            name: mean
            for name in members[0].scores
            if (mean := _mean(name, [member.scores[name] for member in members])) is not None
        }
        of_means = None
        if all(name in scores for name in PARTS) or "adcc" in scores:
            of_means = _adcc_of_means(members)
        sentences.append(
            schemas.EvaluationSummary(
                method=method, layer=layer, scores=scores, adcc_of_means=of_means
            )
        )
    return sentences


def _mean(metric: str, scores: Sequence[schemas.Score]) -> schemas.MeanScore | None:
    mean = interval([score.value for score in scores])
    if mean is None:
        return None
    baselines = {}
    for name in scores[0].baselines:
        others = [value for score in scores if (value := score.baselines.get(name)) is not None]
        if others:
            baselines[name] = float(np.mean(others))
    return schemas.MeanScore(
        value=mean.mean,
        low=mean.low,
        high=mean.high,
        maps=mean.photos,
        baselines=baselines,
        verdict=_mean_verdict(metric, scores),
    )


def _mean_verdict(metric: str, scores: Sequence[schemas.Score]) -> str | None:
    """Return how maps of several images compare with the baselines, image by image."""
    sign = 1 if METRICS[metric].better == "higher" else -1
    told = {}
    for name in COMPARED:
        pairs = [(score.value, score.baselines.get(name)) for score in scores]
        gaps = [
            sign * (mine - other) for mine, other in pairs if mine is not None and other is not None
        ]
        gap = interval(gaps)
        if gap is not None and gap.low is not None and gap.high is not None:
            told[name] = 1 if gap.low > 0 else -1 if gap.high < 0 else 0
    return in_words(told)


def _adcc_of_means(members: Sequence[schemas.Evaluation]) -> float | None:
    """Return the harmonic mean of the parts' means over the maps that have all three."""
    rows = []
    for member in members:
        parts = member.scores["adcc"].details if "adcc" in member.scores else {}
        row = [parts.get(name) for name in PARTS]
        if not parts:
            row = [member.scores[name].value for name in PARTS]
        numbers = [value for value in row if isinstance(value, float)]
        if len(numbers) == len(PARTS):
            rows.append(numbers)
    if not rows:
        return None
    coherency, complexity, drop = (float(value) for value in np.mean(rows, 0))
    return harmonic(coherency, 1 - complexity, 1 - drop)
