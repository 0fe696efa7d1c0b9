"""The result of one item of a job, as the client returns it."""

from __future__ import annotations

from dataclasses import dataclass

from service.client.answers import parsed
from service.client.explanation import Explanation
from service.client.failures import ServiceError, failure
from service.core import schemas
from service.core.job_schemas import ItemResult


@dataclass(frozen=True, eq=False)
class Result:
    """The result of one item of a job.

    Attributes:
        cursor: number of results up to and including this one; `results(after=cursor)` continues
            after it.
        index: index of the item in the submitted images, from 0.
        item: id of the item.
        prediction: the model's prediction; None if the item failed.
        explanations: one map for each target and layer; empty if the item failed.
        failure: reason why the item failed; None if it did not.
    """

    cursor: int
    index: int
    item: str
    prediction: schemas.Prediction | None
    explanations: list[Explanation]
    failure: ServiceError | None


def result_of(line: bytes) -> Result:
    """Return the result in a line of NDJSON.

    Raises:
        UnexpectedAnswer: if the line does not fit the schema.
    """
    read = parsed(ItemResult, line)
    return Result(
        cursor=read.cursor,
        index=read.index,
        item=read.item,
        prediction=read.prediction,
        explanations=[Explanation(explanation) for explanation in read.explanations or ()],
        failure=None if read.problem is None else failure(read.problem),
    )
