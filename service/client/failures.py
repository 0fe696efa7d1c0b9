"""The errors that a call of the client may raise.

- ClientError
  - Unreachable      no answer: connection refused or reset, or timeout
  - UnexpectedAnswer an answer that is not from this service
  - ServiceError     an error that the service reports (RFC 9457)
    - Refused        401, 403: the key is missing, unknown or not allowed
    - NotFound       404: there is no such model, job or item
    - NotFinished    409: the result does not exist yet, or never will
    - Overloaded     429, 503, after all tries

All of them can be pickled, so that they pass unchanged between the processes of a pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from pydantic import ValidationError

from service.core.schemas import ProblemDocument

MAX_QUOTED = 200
"""Largest number of characters that an error message quotes of an answer that is not a problem
document."""


class ClientError(Exception):
    """Base class of the errors that a call may raise, except for errors about its arguments.
    `str()` gives one sentence."""


class Unreachable(ClientError):
    """There was no answer; `__cause__` is the reason."""


class UnexpectedAnswer(ClientError):
    """There was an answer, but not an answer of this service."""


class ServiceError(ClientError):
    """The service answered with an error; `str()` gives its `detail`.

    Attributes:
        detail: one sentence that names the bad value and the allowed values.
        status: HTTP status code.
        type: urn:gradcam-service:…, or "about:blank" if a proxy or another server answered.
        title: general description of the error, without the value.
        pointer: position of the error in the request; None if it has none.
        retry_after: seconds after which the service suggests to try again; None if it does not.
        request_id: id of the request in the service's log; None if there is none.
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
    """The key is missing, unknown or not allowed to make this request (401, 403)."""


class NotFound(ServiceError):
    """There is no such model, job, item or address (404)."""


class NotFinished(ServiceError):
    """The requested result does not exist yet, or never will (409)."""


class Overloaded(ServiceError):
    """The service is overloaded, loading or shutting down, even after all tries (429, 503)."""


Failure = ClientError | OSError
"""The error that takes the place of an explanation: an error of the service or the connection, or
the OSError of a photo that could not be read."""

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
    """Return the error for a problem document."""
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
    """Return the error for an answer with an error status, even if its body is not a problem
    document."""
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
    """Convert a `Retry-After` header (RFC 9110, 10.2.3), in seconds or as a date, to seconds from
    now, at least 0. Return None if there is no header or if it is invalid."""
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
