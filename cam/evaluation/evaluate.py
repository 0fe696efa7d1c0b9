"""Score maps of one image by several metrics, beside maps that know nothing of the model.

from cam import evaluate, explain

(explanation,) = explain(model, image[None])
scores = evaluate(model, image, explanation)
scores["deletion"].value, scores["deletion"].baselines["edges"]
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from cam.drawing.placement import resize
from cam.errors import (
    CamError,
    InvalidOption,
    MethodUnsuited,
    NonFinite,
    NothingDetected,
    TargetMismatch,
)
from cam.evaluation.baselines import baseline, misplaced
from cam.evaluation.candidate import Candidate, candidates_of
from cam.evaluation.metrics import (
    DEFAULTS,
    METRICS,
    SQUARES,
    Baseline,
    Metric,
    MetricOptions,
    Score,
    Scores,
    metric_named,
)
from cam.evaluation.scorer import OUTPUT, Again, Answering, Forwards, Judged, Scorer
from cam.explanation import Explanation, Map, Question
from cam.methods import INPUT, METHODS
from cam.methods.method import load
from cam.outputs.meaning import resolve_reading
from cam.outputs.reading import AUTO, Reading
from cam.passes.onepass import explain_batch
from cam.progress import Progress, finish
from cam.targets import ClassTarget, Target

Planned = tuple[Any, Metric, Scorer, Judged, int]
"""One piece of work: its key, the metric, the scorer, the map, and the number of forward passes."""
Known = Mapping[Any, tuple[float | None, Mapping[str, Any], str | None]]
"""Key of a piece of work → value, details and warning."""
ScoreSteps = Generator[Progress, None, list[Scores] | CamError]


def evaluate(
    model: nn.Module,
    image: Tensor,
    judged: Explanation | Map,
    *,
    target: Target | SupportsIndex | None = None,
    metrics: Sequence[str] | None = None,
    options: MetricOptions | None = None,
    question: Question | None = None,
    chunk: int | None = None,
    reading: Reading = AUTO,
    pixels: NDArray[np.uint8] | None = None,
    normalise: Callable[[NDArray[np.uint8]], Tensor] | None = None,
) -> Scores:
    """Score one map of one image. The model is left as found.

    Args:
        image: float (C, H, W), preprocessed, on the model's device and in its dtype.
        judged: an explanation of `cam.explain`; or any map, float (h, w), which covers the image.
            A map can only be scored by metrics that make no map of a changed image.
        target: the target of a map; None for the predicted class. An explanation knows its target.
        metrics: names in `cam.METRICS`; None for `DEFAULTS`, or for those of them that can score
            a map that is not an explanation.
        question: the question whose answer the explanation is, if it has a budget, `smooth` or
            `fuse`.
        chunk: maximum number of images in one forward pass; None for 4 on the CPU, where larger
            passes are slower for each image, and 64 elsewhere.
        reading: how the model's output is read.
        pixels: the image before preprocessing, RGB uint8 (H, W, 3), and
        normalise: its preprocessing, (n, H, W, 3) → (n, C, H, W); `stability` leaves JPEG out
            without them.

    Raises:
        InvalidOption: if a metric or an option does not exist or cannot have its value.
        MethodUnsuited: if a metric needs to make maps, and `judged` is only a map.
        TargetMismatch: if the target has no probability.
        CamError: other errors of `cam.errors`.
    """
    if isinstance(judged, Explanation):
        layers = () if judged.layer == INPUT else (judged.layer,)
        question = question or Question(
            (judged.target,), judged.method, layers, signed=judged.signed
        )
        at_one_layer = question.fuse == "none" and not METHODS[judged.method].levels
        if at_one_layer and judged.layer != INPUT:
            question = replace(question, layers=(judged.layer,))
        question = replace(question, targets=(judged.target,))
        (candidate,) = candidates_of([replace(judged, turn=0)])
    else:
        aim = target
        if aim is None or isinstance(aim, SupportsIndex):
            aim = ClassTarget(None if aim is None else index(aim))
        question = Question((aim,), "gradcam", ())
        candidate = Candidate(np.asarray(judged, np.float32))
    if metrics is None:
        known = candidate.layer is not None
        metrics = [name for name in DEFAULTS if known or not METRICS[name].maps(MetricOptions())]
    reading, _ = resolve_reading(model, image[None], reading)
    steps = evaluate_in_steps(
        model,
        image,
        question,
        [candidate],
        metrics,
        options or MetricOptions(),
        answer=partial(explain_batch, model, reading=reading),
        chunk=chunk or (4 if image.device.type == "cpu" else 64),
        reading=reading,
        pixels=pixels,
        normalise=normalise,
    )
    scores = finish(steps)
    if isinstance(scores, CamError):
        raise scores
    return scores[0]


def check(
    metrics: Sequence[str], options: MetricOptions, candidates: Sequence[Candidate], image: Tensor
) -> list[Metric]:
    """Return the metrics after checking that the candidates can be scored by them.

    Raises:
        InvalidOption, MethodUnsuited: if not.
    """
    options.check()
    named = [metric_named(name) for name in dict.fromkeys(metrics)]
    if not named:
        raise InvalidOption("the list of metrics is empty")
    for metric in named:
        if metric.maps(options) and any(candidate.layer is None for candidate in candidates):
            raise MethodUnsuited(
                f"{metric.name} makes maps of changed images, and how this map was made is not "
                "known"
            )
        if metric.needs == "region" and options.region is None:
            raise InvalidOption(f"{metric.name} needs a region where the heat should be")
    region, size = options.region, tuple(image.shape[-2:])
    if region is not None and (region.shape != size or region.dtype != np.bool_):
        raise InvalidOption(
            f"the region is {region.dtype} {region.shape}; it should be bool {size}, as the image"
        )
    return named


def evaluate_in_steps(
    model: nn.Module,
    image: Tensor,
    question: Question,
    candidates: Sequence[Candidate],
    metrics: Sequence[str],
    options: MetricOptions,
    *,
    answer: Answering,
    chunk: int = 16,
    reading: Reading = AUTO,
    pixels: NDArray[np.uint8] | None = None,
    normalise: Callable[[NDArray[np.uint8]], Tensor] | None = None,
) -> ScoreSteps:
    """Score the maps of one question about one image.

    The generator yields its progress after each forward pass, and returns the scores of each
    candidate, or the error of this image. The baselines of all candidates with the same target are
    computed once.

    Args:
        question: the question whose answer the candidates are; its targets are resolved here.
        answer: answers one-pass questions for images; `cam.explain_batch`, or a faster path.
        reading: how the model's output is read, with the activation resolved.

    Raises:
        InvalidOption, MethodUnsuited: if the metrics or options cannot be used for the candidates.
    """
    named = check(metrics, options, candidates, image)
    if problem := _unusable([candidate.map for candidate in candidates]):
        return problem
    (first,) = answer(image[None], [OUTPUT])
    if isinstance(first, CamError):
        return first
    if not all(
        isinstance(target, ClassTarget) and not target.against for target in question.targets
    ):
        return TargetMismatch(
            "only a target that has a probability can be evaluated: a class, a box or a mask, not "
            "what speaks against it, a unit or a similarity"
        )
    targets = question.resolve(first.output)
    if isinstance(targets, CamError):
        return targets
    if any(candidate.turn >= len(targets) for candidate in candidates):
        return NothingDetected("the model no longer finds what the map explains")
    scorers: list[Scorer] = []
    for target in targets:
        likely = target.probability(first.output)
        if likely is None:
            return TargetMismatch(
                "the model's outputs are values, and metrics compare probabilities"
            )
        scorer = Scorer(
            model, image, target, likely, answer, options, chunk, reading, pixels, normalise
        )
        scorers.append(scorer)
    known = yield from _values(list(_plan(named, options, question, candidates, scorers)))
    return [
        {metric.name: _score(metric, number, candidate, options, known) for metric in named}
        for number, candidate in enumerate(candidates)
    ]


def _unusable(maps: Sequence[NDArray[np.float32]]) -> CamError | None:
    """Return the reason why one of the maps cannot be scored, or None."""
    for values in maps:
        if values.ndim != 2 or not values.size:
            return InvalidOption(f"the map has the shape {values.shape}, not (height, width)")
        if not np.isfinite(values).all():
            return NonFinite("the map has values that are NaN or infinite")
    return None


def _values(plan: Sequence[Planned]) -> Generator[Progress, None, Known]:
    """Compute what is planned. The generator yields its progress after each forward pass."""
    total, done = 1 + sum(passes for *_, passes in plan), 1
    yield Progress(done, total)
    known: dict[Any, tuple[float | None, Mapping[str, Any], str | None]] = {}
    for key, metric, scorer, judged, passes in plan:
        steps = load(metric.function)(scorer, judged)
        made = 0
        while True:
            try:
                made += next(steps)
            except StopIteration as stop:
                known[key] = (*stop.value, None)
                break
            except CamError as error:  # of the changed images: this metric has no value
                known[key] = (None, {}, str(error))
                break
            yield Progress(done + min(made, passes), total)
        done += passes
        yield Progress(done, total)
    return known


def _score(
    metric: Metric, number: int, candidate: Candidate, options: MetricOptions, known: Known
) -> Score:
    """Return a metric's value for a candidate beside those for its baselines.

    Args:
        number: number of the candidate.
        known: what `_values` has returned.
    """
    value, details, warning = known[metric.name, number]
    if value is None and warning is None:
        warning = metric.without
    drawn = {
        name: [
            other
            for key in _baseline_keys(metric, name, number, candidate, options)
            if (other := known[key][0]) is not None
        ]
        for name in options.baselines
        if name in metric.baselines
    }
    compared: dict[str, float | None] = {
        name: float(np.mean(values)) if values else None for name, values in drawn.items()
    }
    return Score(value, compared, details, warning, tuple(drawn.get("random", ())))


def _plan(
    named: Sequence[Metric],
    options: MetricOptions,
    question: Question,
    candidates: Sequence[Candidate],
    scorers: Sequence[Scorer],
) -> Iterator[Planned]:
    """Yield each piece of work once."""
    planned: dict[Any, Judged] = {}
    parts: set[Any] = set()
    for number, candidate in enumerate(candidates):
        scorer = scorers[candidate.turn]
        judged = _judged(scorer, question, candidate)
        for metric in named:
            work: list[tuple[Any, Any, Judged]] = [((metric.name, number), number, judged)]
            for name in options.baselines:
                if name not in metric.baselines:
                    continue
                for key in _baseline_keys(metric, name, number, candidate, options):
                    which = key[1:]
                    if which not in planned:
                        planned[which] = _baseline(scorer, name, judged, key)
                    work.append((key, which, planned[which]))
            for key, which, subject in work:
                if key in parts:
                    continue
                parts.add(key)
                counts = dict(metric.forwards(options, subject.values.size))
                if maps := metric.maps(options):
                    counts[metric.sharing or metric.name] = maps * (
                        _passes(question) if subject.again is judged.again else 0
                    )
                passes = 0
                for part, count in counts.items():
                    owner = candidate.turn if part == SQUARES else which
                    if (owner, part) not in parts:
                        parts.add((owner, part))
                        passes += count
                yield key, metric, scorer, subject, passes


def _baseline_keys(
    metric: Metric, name: Baseline, number: int, candidate: Candidate, options: MetricOptions
) -> list[tuple[Any, ...]]:
    """Return a key of each map of a baseline: of `random` there are several, made of the map that
    is scored.

    Args:
        number: number of the candidate.
    """
    if name != "random":
        return [(metric.name, name, candidate.turn)]
    count = metric.random_maps(options)
    return [(metric.name, name, number, count, turn) for turn in range(1, count + 1)]


def _judged(scorer: Scorer, question: Question, candidate: Candidate) -> Judged:
    again: Again | None = None
    if candidate.layer is not None:
        turn, asked = candidate.layer, question
        method = METHODS[question.method]
        if question.fuse == "none" and method.at == "layer" and not method.levels:
            layers = tuple(dict.fromkeys(question.layers))
            turn, asked = 0, replace(question, layers=(layers[candidate.layer],))
        again = partial(scorer.maps, asked, turn)
    small = np.ascontiguousarray(candidate.map, np.float32)
    return Judged(small, resize(small, *scorer.size), again, candidate.completeness)


def _baseline(scorer: Scorer, name: Baseline, judged: Judged, key: tuple[Any, ...]) -> Judged:
    """Return a map for comparison.

    Args:
        judged: the map that is scored.
        key: of `_baseline_keys`.
    """
    if name == "random":
        count, turn = key[-2:]
        values = misplaced(judged.values, turn, count)
        return Judged(values, values, judged.again)

    def make(image: Tensor) -> Map:
        return baseline(name, image.detach().float().cpu().numpy())

    def again(images: Tensor, targets: Sequence[Target]) -> Forwards[list[Map | CamError]]:
        yield 0
        return [make(image) for image in images]

    small = make(scorer.image)
    return Judged(small, resize(small, *scorer.size), again)


def _passes(question: Question) -> int:
    """Return the forward passes that one map of the question takes."""
    if not question.in_steps:
        return 1
    method = METHODS[question.method]
    return question.budget or method.budget or 1
