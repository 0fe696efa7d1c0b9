"""Parsing of the service's answers, in plain functions that both clients use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from service.client.explanation import Explanation
from service.client.failures import ServiceError, UnexpectedAnswer, failure, failure_of
from service.core import schemas
from service.features.answers import schemas as answer_schemas
from service.features.evaluate.schemas import EvaluateResponse, Evaluation
from service.features.jobs.schemas import ItemFacts, ItemResult

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Response:
    """The answer to a call.

    Attributes:
        headers: header fields; the lookup of names ignores case.
        body: body of the answer; empty if it was written to a file.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def require_success(self) -> Response:
        """Return the answer if its status is 2xx.

        Raises:
            ServiceError: if the status is anything else, such as an error or a redirect.
        """
        if not 200 <= self.status < 300:
            raise failure_of(self.status, self.headers, self.body)
        return self

    def require_picture(self) -> bytes:
        """Return the body if it is a picture.

        Raises:
            UnexpectedAnswer: if it is not a picture.
        """
        media_type = self.headers.get("content-type", "")
        if not media_type.startswith("image/"):
            raise UnexpectedAnswer(f"the answer is {media_type or 'of no type'}, not a picture")
        return self.body


class Document(RootModel[dict[str, Any]]):
    """An answer of any operation."""


def document(answer: Response) -> dict[str, Any]:
    """Return the JSON of an answer.

    Raises:
        UnexpectedAnswer: if it is not a JSON object.
    """
    return parsed(Document, answer.body).root


def parsed(schema: type[M], body: bytes | str | Mapping[str, Any]) -> M:
    """Read JSON, which may be parsed already, according to a schema.

    Raises:
        UnexpectedAnswer: if the body does not fit the schema.
    """
    try:
        if isinstance(body, Mapping):
            return schema.model_validate(body)
        return schema.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = "/".join(map(str, first["loc"])) or "its start"
        raise UnexpectedAnswer(
            f"the answer does not fit {schema.__name__}, at {where}: {first['msg']}; is it the "
            "address of a gradcam-service, of this version?"
        ) from error


def explanations(document: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Explanation]:
    """Return the explanations of an answer.

    Args:
        asked: the parameters of the request.

    Raises:
        ServiceError: if the service could not explain the photo.
        UnexpectedAnswer: if the answer does not fit the schema.
    """
    explanations = parsed(schemas.ExplainResponse, document).explanations
    return [Explanation(_sound(explanation), asked) for explanation in explanations]


def evaluations(document: Mapping[str, Any]) -> list[Evaluation]:
    """Return the scores of an answer.

    Raises:
        ServiceError: if the service could not evaluate the photo's maps.
        UnexpectedAnswer: if the answer does not fit the schema.
    """
    return [_sound(evaluation) for evaluation in parsed(EvaluateResponse, document).evaluations]


def first(models: list[str]) -> str:
    """Return the name of the service's first model.

    Raises:
        UnexpectedAnswer: if there are no models.
    """
    if not models:
        raise UnexpectedAnswer("the service has no models; name one")
    return models[0]


def only(explanations: list[Explanation]) -> Explanation:
    """Return the only explanation.

    Raises:
        ValueError: if there is not exactly one, because several maps were requested.
    """
    if len(explanations) != 1:
        raise ValueError(f"the answer has {len(explanations)} maps; explain_each gives them all")
    return explanations[0]


def prediction(document: Mapping[str, Any]) -> schemas.Prediction:
    """Return the prediction of an answer.

    Raises:
        ServiceError: if the service could not predict the photo.
        UnexpectedAnswer: if the answer does not fit the schema or has several predictions.
    """
    predictions = parsed(schemas.PredictResponse, document).predictions
    if len(predictions) != 1:
        raise UnexpectedAnswer(f"the answer has {len(predictions)} predictions of one photo")
    return _sound(predictions[0])


def answer(document: Mapping[str, Any]) -> answer_schemas.Answer:
    """Return the answer to a question about one photo.

    Raises:
        ServiceError: if the service could not answer it.
        UnexpectedAnswer: if the response does not fit the schema or has several answers.
    """
    found = parsed(answer_schemas.AnswerResponse, document).answers
    if len(found) != 1:
        raise UnexpectedAnswer(f"the response has {len(found)} answers about one photo")
    return _sound(found[0])


D = TypeVar("D", schemas.Explanation, schemas.Prediction, Evaluation, answer_schemas.Answer)


def _sound(result: D | schemas.FailedInstance) -> D:
    if isinstance(result, schemas.FailedInstance):
        raise failure(result.problem)
    return result


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


def result_of(line: bytes, schema: type[ItemFacts] = ItemResult) -> Result:
    """Return the result in a line of NDJSON.

    Args:
        schema: `ItemFacts` if the line was asked for without maps.

    Raises:
        UnexpectedAnswer: if the line does not fit the schema.
    """
    read = parsed(schema, line)
    return Result(
        cursor=read.cursor,
        index=read.index,
        item=read.item,
        prediction=read.prediction,
        explanations=[Explanation(explanation) for explanation in read.explanations or ()],
        failure=None if read.problem is None else failure(read.problem),
    )
