"""What a call may end in, instead of an answer.

- ClientError
  - Unreachable      nobody answered: refused, reset, out of time
  - UnexpectedAnswer an answer that is not this service's
  - ServiceError     the service's own sentence (RFC 9457)
    - Refused        401, 403: the key
    - NotFound       404: the model, the job, the item
    - NotFinished    409: the job has it not yet, or not any more
    - Overloaded     429, 503, after all tries

All of them can be pickled, so that they come out of a pool of processes as they went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from pydantic import ValidationError

from service.core.schemas import ProblemDocument

MAX_QUOTED = 200
"""Characters of an answer that is no problem document, in a sentence."""


class ClientError(Exception):
    """Whatever a call may raise but for mistakes in its arguments; `str()` is one sentence."""


class Unreachable(ClientError):
    """There was no answer; `__cause__` is why."""


class UnexpectedAnswer(ClientError):
    """There was an answer, and it is not one of this service."""


class ServiceError(ClientError):
    """An answer that is an error; `str()` is its `detail`.

    Attributes:
        detail: one sentence that names the bad value and what is allowed.
        status: of HTTP.
        type: urn:gradcam-service:…, or "about:blank" where something between answered.
        title: what is wrong, whatever the value.
        pointer: where in the request it is; None where it is nowhere.
        retry_after: seconds after which the service said that trying again makes sense, or None.
        request_id: by which the service's log knows the request, or None.
    """

    def __init__(
        self,
        detail: str,
        status: int,
        type: str = "about:blank",  # noqa: A002 - RFC 9457's name
        title: str = "",
        pointer: str | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(detail, status, type, title, pointer, retry_after, request_id)
        self.detail = detail
        self.status = status
        self.type = type
        self.title = title
        self.pointer = pointer
        self.retry_after = retry_after
        self.request_id = request_id

    def __str__(self) -> str:
        return self.detail


class Refused(ServiceError):
    """No key, an unknown one, or one that may not (401, 403)."""


class NotFound(ServiceError):
    """There is no such model, job, item or address (404)."""


class NotFinished(ServiceError):
    """What is asked for is not there yet, or will not be (409)."""


class Overloaded(ServiceError):
    """Too much to do, loading or shutting down (429, 503), after all tries."""


Failure = ClientError | OSError
"""What stands in the place of an explanation that there is not: the service's or the connection's
error, or why the photo could not be read."""

KINDS: Mapping[int, type[ServiceError]] = {
    401: Refused,
    403: Refused,
    404: NotFound,
    409: NotFinished,
    429: Overloaded,
    503: Overloaded,
}


def failure(
    document: ProblemDocument, *, retry_after: float | None = None, request_id: str | None = None
) -> ServiceError:
    """A problem document as what is raised, or stands in a result's place."""
    kind = KINDS.get(document.status, ServiceError)
    return kind(
        document.detail,
        document.status,
        document.type,
        document.title,
        document.pointer,
        retry_after,
        request_id,
    )


def failure_of(status: int, headers: Mapping[str, str], body: bytes) -> ServiceError:
    """An answer that is an error as what is raised, also where it is no problem document."""
    try:
        document = ProblemDocument.model_validate_json(body)
    except ValidationError:
        title = HTTPStatus(status).phrase if status in list(HTTPStatus) else "an unknown status"
        said = " ".join(body.decode("utf-8", "replace").split())[:MAX_QUOTED]
        detail = f"the answer is {status} {title}" + (f": {said}" if said else "")
        document = ProblemDocument(
            type="about:blank", title=title, status=status, detail=detail, error=detail
        )
    return failure(
        document,
        retry_after=seconds_until(headers.get("retry-after")),
        request_id=headers.get("x-request-id"),
    )


def seconds_until(retry_after: str | None) -> float | None:
    """A `Retry-After` (RFC 9110, 10.2.3), seconds or a date, as seconds from now, at least 0; None
    without one, or where it is neither, or no calendar has it."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if moment.tzinfo is None:  # the obsolete form without a zone means UTC
        moment = moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)
