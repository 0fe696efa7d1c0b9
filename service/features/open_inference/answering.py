"""Questions about images, to a model that answers them.

Of N images, the outputs are `text` BYTES [N], the answers, and `answer` BYTES [N], the JSON of
`:answer` about each, with the map of each word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from service.core.errors import Problem
from service.core.schemas import dump
from service.features.answers.ask import ask
from service.features.answers.parameters import AnswerParameters
from service.features.open_inference.tensors import Tensor
from service.http.reception import RequestContext
from service.http.responses import together
from service.pipeline.instances import Instance
from service.pipeline.pipeline import Pipeline

ANSWERS: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "text": ("BYTES", (-1,)),
    "answer": ("BYTES", (-1,)),
}
"""Name of an output → its datatype and shape."""


async def answer_questions(
    pipeline: Pipeline, context: RequestContext[AnswerParameters], names: Sequence[str]
) -> list[Tensor]:
    """Return the named outputs of the questions of a request.

    Raises:
        Problem: if one of them cannot be answered.
    """

    async def work(instance: Instance[AnswerParameters]) -> tuple[bytes, bytes]:
        result = await ask(
            pipeline,
            context.replicas,
            instance,
            context.timings,
            until=context.passes_until,
        )
        told = dump(await pipeline.run(result.as_json)) if "answer" in names else b""
        context.hold(3 * len(told))  # JSON in JSON: as text, escaped, and in the body
        return result.answer.text.encode(), told

    rows: list[tuple[bytes, bytes]] = []
    for found in await together(work, context.instances):
        if isinstance(found, Problem):
            raise found
        rows.append(found)
    columns = dict(zip(ANSWERS, zip(*rows, strict=True), strict=True))
    return [Tensor(name, (len(rows),), strings=columns[name], is_text=True) for name in names]
