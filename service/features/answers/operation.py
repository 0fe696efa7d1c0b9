"""`:answer`: the answer to a question about each image, and where the model sees each word."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from pydantic import BaseModel

from cam.answers.answer import AnswerProgress
from cam.progress import Progress
from service.core.schemas import TINY_PNG
from service.features.answers.ask import ask
from service.features.answers.parameters import AnswerParameters, AnswerRequest
from service.features.answers.result import AnswerResult, describe_token_line
from service.features.answers.schemas import Answer, AnswerResponse, TokenLine
from service.http.contract import worked_example
from service.http.operation import InstanceContext, Operation, progress_line
from service.pipeline.instances import Instance
from service.pipeline.rendering import NAMED_PICTURES, PICTURES


async def _asked(context: InstanceContext[AnswerParameters]) -> AnswerResult:
    request = context.request
    return await ask(
        context.pipeline,
        request.replicas,
        context.instance,
        request.timings,
        context.progress,
        request.passes_until,
    )


async def _work(context: InstanceContext[AnswerParameters]) -> list[Answer]:
    result = await _asked(context)
    return [await context.pipeline.run(result.as_json)]


async def _draw(context: InstanceContext[AnswerParameters], form: str) -> bytes:
    result = await _asked(context)
    return await context.pipeline.run(partial(result.as_picture, form))


def _step(instance: Instance[AnswerParameters], progress: Progress) -> BaseModel:
    if isinstance(progress, AnswerProgress) and progress.token:
        return describe_token_line(instance, progress)
    return progress_line(instance, progress)


ANSWER: Final = Operation(
    name="answer",
    summary="The answer to a question about each image, and where the model sees each word",
    description=(
        "For vision–language models. `Accept` selects the form of the answer: `application/json` "
        "(default), `application/x-ndjson` (each token as soon as it is said, with its map, then "
        f"the whole answer), or, for one image, {NAMED_PICTURES}: a picture of one `word`, or of "
        "all words."
    ),
    page="language.md",
    parameters=AnswerParameters,
    body=AnswerRequest,
    example={
        "instances": [
            {"image": {"b64": TINY_PNG}, "question": "what colour is the circle?"},
            {"image": {"b64": TINY_PNG}},
        ],
        "parameters": {"question": "what is in the picture?", "max_tokens": 32},
    },
    work=_work,
    entry=Answer,
    response=AnswerResponse,
    line=json.dumps(worked_example(TokenLine)) + "\n" + json.dumps(worked_example(Answer)) + "\n",
    step=_step,
    drawn=tuple(PICTURES),
    draw=_draw,
    told=("Server-Timing",),
)
