"""Scores of the maps of one image, which the service makes or the caller has sent."""

from __future__ import annotations

from dataclasses import replace

from PIL import Image

from cam import Question
from cam.evaluation.metrics import METRICS, Metric, MetricOptions
from service.backend.interface import Listener, ModelBackend
from service.backend.outcome import ServedAnswer
from service.backend.timings import Timings
from service.core.errors import Problem, UnsuitedMetric
from service.features.evaluate.parameters import EvaluateParameters
from service.features.evaluate.schemas import Evaluation
from service.features.evaluate.sent_map import InvalidMap, Map, map_on_input
from service.models.preprocessing import ModelInput
from service.pipeline.coordinates import region_on_input
from service.pipeline.evaluation import describe_scores, require_suited, scored
from service.pipeline.instances import Instance
from service.pipeline.json_records import describe_target
from service.pipeline.opened_photo import OpenedPhoto, part_of
from service.pipeline.pipeline import Pipeline


async def evaluate(
    pipeline: Pipeline,
    replicas: ModelBackend,
    instance: Instance[EvaluateParameters],
    timings: Timings,
    progress: Listener | None = None,
    until: float | None = None,
) -> list[Evaluation]:
    """Return the JSON schema objects of the scores of each map of one image, which the service
    makes or the caller has sent.

    Args:
        progress: is called with the number of forward passes that have been made.
        until: time of `time.monotonic` at which the scores should be there. A method of many
            passes takes half of the time until then, unless the parameters set a `budget`.

    Raises:
        Problem: if this instance cannot be evaluated.
    """
    async with pipeline.opened(replicas, instance, timings) as opened:
        seen, questions, answer, options, judged = await _judged(
            opened, progress, part_of(until, 2)
        )
    # The photo is gone by now: what follows takes many passes, and needs the input alone.
    scores = await scored(
        replicas,
        seen,
        questions,
        answer,
        instance.parameters.metrics,
        timings,
        options=options,
        progress=progress,
        judged=judged,
        prompts=opened.prompts,
    )
    return [
        Evaluation(
            instance=instance.index,
            id=instance.id,
            method=explanation.method if judged is None else None,
            layer=explanation.layer if judged is None else None,
            target=describe_target(explanation, opened.model.labels, seen),
            scores=describe_scores(score, options, opened.model.audited, seen.fit),
            warnings=list(explanation.warnings) if judged is None else [],
        )
        for explanation, score in zip(answer.explanations, scores, strict=True)
    ]


async def _judged(
    opened: OpenedPhoto[EvaluateParameters], progress: Listener | None, until: float | None
) -> tuple[ModelInput, tuple[Question, ...], ServedAnswer, MetricOptions, Map | None]:
    """Return what scoring an image's maps needs: the model's input, the questions, their answer
    with the maps, the metrics' options, and the map that was sent, on the input's pixels.

    Raises:
        Problem: if this instance cannot be evaluated.
    """
    instance = opened.instance
    parameters, sent = instance.parameters, instance.parameters.map
    try:
        _require_judged(parameters)
    except Problem as problem:
        raise instance.blame(problem) from None
    photo, seen, questions, answer = await opened.explained(
        progress=progress, until=until, blank=sent is not None
    )

    def prepare() -> tuple[MetricOptions, Map | None]:
        options = options_of(parameters, photo, seen, max_pixels=opened.max_pixels)
        return options, None if sent is None else map_on_input(sent.b64, photo, seen)

    try:
        options, judged = await opened.pool.run(prepare)
    except Problem as problem:
        raise instance.blame(problem) from None
    if judged is not None:
        answer = replace(answer, explanations=answer.explanations[:1])
    return seen, questions, answer, options, judged


def _require_judged(parameters: EvaluateParameters) -> None:
    """Check that the metrics can judge the maps.

    Raises:
        UnsuitedMetric: if a metric lacks its region, or makes maps and the map was sent.
        InvalidMap: if there are several targets, methods or layers for the map that was sent.
    """
    require_suited(parameters.metrics, region=parameters.region is not None)
    if parameters.map is None:
        return
    if parameters.maps != 1:
        raise InvalidMap(
            f"the parameters ask for {parameters.maps} maps, and one was sent; name one target, "
            "and leave out method and layer"
        )
    able = [name for name, metric in METRICS.items() if not _needs_method(metric)]
    for metric in (METRICS[name] for name in parameters.metrics):
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
