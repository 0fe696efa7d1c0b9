"""`:answer`: the answer to a question about each image, and where the model sees each word."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from pydantic import BaseModel

from cam.answers.answer import AnswerProgress
from cam.progress import Progress
from service.backend.interface import Listener
from service.core.schemas import TINY_PNG
from service.features.answers.ask import ask
from service.features.answers.parameters import AnswerParameters, AnswerRequest
from service.features.answers.result import AnswerResult, describe_token_line
from service.features.answers.schemas import Answer, AnswerResponse, TokenLine
from service.http.contract import worked_example
from service.http.operation import Operation, each, progress_line
from service.http.reception import RequestContext
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline
from service.pipeline.rendering import NAMED_PICTURES, PICTURES


async def _asked(
    pipeline: Pipeline,
    context: RequestContext[AnswerParameters],
    instance: Instance[AnswerParameters],
    progress: Listener | None = None,
) -> AnswerResult:
    return await ask(
        pipeline, context.replicas, instance, context.timings, progress, context.passes_until
    )


async def _work(
    pipeline: Pipeline,
    context: RequestContext[AnswerParameters],
    instance: Instance[AnswerParameters],
    progress: Listener | None,
) -> list[Answer]:
    result = await _asked(pipeline, context, instance, progress)
    return [await pipeline.run(result.as_json)]


async def _draw(pipeline: Pipeline, context: RequestContext[AnswerParameters], form: str) -> bytes:
    result = await _asked(pipeline, context, context.instances[0])
    return await pipeline.run(partial(result.as_picture, form))


def _step(instance: Instance[AnswerParameters], progress: Progress) -> BaseModel:
    if isinstance(progress, AnswerProgress) and progress.token:
        return describe_token_line(instance, progress)
    return progress_line(instance, progress)


ANSWER: Final = Operation(
    name="answer",
    function="answer",
    summary="The answer to a question about each image, and where the model sees each word",
    description=(
        "For vision–language models. `Accept` selects the form of the answer: `application/json` "
        "(default), `application/x-ndjson` (each token as soon as it is said, with its map, then "
        f"the whole answer), or, for one image, {NAMED_PICTURES}: a picture of one `word`, or of "
        "all words."
    ),
    parameters=AnswerParameters,
    body=AnswerRequest,
    example={
        "instances": [
            {"image": {"b64": TINY_PNG}, "question": "what colour is the circle?"},
            {"image": {"b64": TINY_PNG}},
        ],
        "parameters": {"question": "what is in the picture?", "max_tokens": 32},
    },
    response=AnswerResponse,
    work=_work,
    gather=lambda results: AnswerResponse(answers=each(results)),
    lines=lambda answers: answers,
    line=json.dumps(worked_example(TokenLine)) + "\n" + json.dumps(worked_example(Answer)) + "\n",
    step=_step,
    drawn=tuple(PICTURES),
    draw=_draw,
    told=("Server-Timing",),
)
