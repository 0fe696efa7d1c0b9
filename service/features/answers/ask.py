"""A question about one photo, asked of a vision–language model."""

from __future__ import annotations

import math
from time import monotonic
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cam import AnswerOptions
from cam.answers.answer import LEAST_SIDE
from cam.answers.methods import METHODS
from cam.drawing.overlay import Picture
from cam.drawing.placement import Box
from service.backend.interface import Listener, ModelBackend
from service.backend.timings import Timings
from service.core.errors import InvalidParameter, Problem
from service.features.answers.parameters import AnswerParameters
from service.features.answers.result import AnswerResult
from service.features.answers.work import AnswerQuestion
from service.models.preprocessing import ModelInput
from service.pipeline.coordinates import region_on_input
from service.pipeline.instances import Instance
from service.pipeline.parameters import AUDITED
from service.pipeline.pipeline import Pipeline
from service.pipeline.resolve import recommended_method

EXPLAINING_SHARE: Final = 0.875
"""Share of an answer's time that is left for methods with passes of their own: those with gradients
take five to ten times as long as the answer."""
ANSWERED_SIDE: Final = 1024
"""Longer side, in pixels, to which a photo is reduced before a question about it is answered."""


async def ask(
    pipeline: Pipeline,
    replicas: ModelBackend,
    instance: Instance[AnswerParameters],
    timings: Timings,
    progress: Listener | None = None,
    until: float | None = None,
) -> AnswerResult:
    """Answer a question about one photo and explain each word.

    Args:
        progress: is called with each token as soon as it is said.
        until: time of `time.monotonic` at which the answer is cut off.

    Raises:
        Problem: if the question of this instance cannot be answered.
    """
    asked = instance.parameters
    if not asked.question.strip():
        problem = InvalidParameter("question is empty; ask one, as in 'what is in the picture?'")
        raise problem.at(instance.origins.get("question", "/parameters/question"))
    name = recommended_method(replicas.model) if asked.method == AUDITED else asked.method
    method = METHODS[name]
    for option, one_word in (("evaluate", asked.evaluate), ("method", method.of == "word")):
        if one_word and asked.word is None:
            what = "scores the map of" if option == "evaluate" else f"{name!r} explains"
            problem = InvalidParameter(f"{option} {what} one word; name it by word")
            raise problem.at(instance.origins.get(option, f"/parameters/{option}"))
    if asked.region and not asked.evaluate:
        problem = InvalidParameter("region is for the scores of a word; set evaluate, too")
        raise problem.at(instance.origins.get("region", "/parameters/region"))
    async with pipeline.opened(replicas, instance, timings) as opened:

        def work() -> tuple[tuple[int, int], Picture, NDArray[np.bool_] | None]:
            with timings.phase("decode", pipeline.metrics):
                photo = opened.encoded.decode()
                small = photo.copy() if asked.region else photo
                size = photo.size
                long = max(ANSWERED_SIDE, math.ceil(LEAST_SIDE * max(size) / min(size)))
                small.thumbnail((long, long), Image.Resampling.LANCZOS)
                pixels = np.asarray(small)
                if asked.region is None:
                    return size, pixels, None
                seen = ModelInput.of(pixels, Box(0, 0, *size))
                region = region_on_input(asked.region, photo, seen, max_pixels=pipeline.max_pixels)
                return size, pixels, region

        try:
            size, pixels, region = await opened.pool.run(work)
        except Problem as problem:
            raise instance.blame(problem).at(instance.pointer) from None
    # What follows takes seconds, and holds the small photo alone.
    options = AnswerOptions(
        answer=asked.answer,
        max_tokens=asked.max_tokens,
        method=name,
        evidence=asked.evidence,
        alternatives=asked.alternatives,
        word=asked.word,
        evaluate=asked.evaluate,
        region=region,
    )
    if until is not None and method.of != "token":
        until -= (until - monotonic()) * EXPLAINING_SHARE
    question = AnswerQuestion(pixels, asked.question, options, until)
    outcome = await replicas.ask(question, progress=progress)
    timings.note_outcome(outcome)
    return AnswerResult(instance, outcome.value, pixels, size, opened.encoded.warnings)
