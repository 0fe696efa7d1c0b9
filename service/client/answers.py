"""What the service says, as Python has it: plain functions, the same for both clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from service.client.explanation import Explanation
from service.client.failures import UnexpectedAnswer, failure, failure_of
from service.core import schemas

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Answer:
    """What came back of a call.

    Attributes:
        headers: their names are found in any case.
        body: empty where it went into a file.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def require_success(self) -> Answer:
        """
        Raises:
            ServiceError: if it is an error, or leads elsewhere.
        """
        if not 200 <= self.status < 300:
            raise failure_of(self.status, self.headers, self.body)
        return self

    def require_picture(self) -> bytes:
        """
        Raises:
            UnexpectedAnswer: if it is none.
        """
        media_type = self.headers.get("content-type", "")
        if not media_type.startswith("image/"):
            raise UnexpectedAnswer(f"the answer is {media_type or 'of no type'}, not a picture")
        return self.body


def parsed(schema: type[M], body: bytes | str) -> M:
    """
    Raises:
        UnexpectedAnswer: if the service does not speak like this client.
    """
    try:
        return schema.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = "/".join(map(str, first["loc"])) or "its start"
        raise UnexpectedAnswer(
            f"the answer is no {schema.__name__}, at {where}: {first['msg']}; is it the address "
            "of a gradcam-service, of this version?"
        ) from error


def explanations(answer: Answer) -> list[Explanation]:
    """
    Raises:
        ServiceError: if the service could not explain the photo.
    """
    found = parsed(schemas.ExplainResponse, answer.body).explanations
    return [Explanation(_sound(each)) for each in found]


def first(models: list[str]) -> str:
    """
    Raises:
        UnexpectedAnswer: if there is none.
    """
    if not models:
        raise UnexpectedAnswer("the service has no models; name one")
    return models[0]


def only(found: list[Explanation]) -> Explanation:
    """
    Raises:
        ValueError: if several maps were asked for.
    """
    if len(found) != 1:
        raise ValueError(f"the answer has {len(found)} maps; explain_each gives them all")
    return found[0]


def prediction(answer: Answer) -> schemas.Prediction:
    """
    Raises:
        ServiceError: if the service could not predict the photo.
    """
    found = parsed(schemas.PredictResponse, answer.body).predictions
    if len(found) != 1:
        raise UnexpectedAnswer(f"the answer has {len(found)} predictions of one photo")
    return _sound(found[0])


D = TypeVar("D", schemas.Explanation, schemas.Prediction)


def _sound(result: D | schemas.FailedInstance) -> D:
    if isinstance(result, schemas.FailedInstance):
        raise failure(result.problem)
    return result
