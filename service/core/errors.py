"""The errors that the service answers with, as RFC 9457 problems.

- Problem
  - 400 MalformedRequest      the request or its body cannot be read
  - 401 Unauthorized          no API key, or an unknown one
  - 403 Forbidden             the key's scopes, or the service's settings, do not allow it
  - 404 UnknownRoute, UnknownModel
  - 405 MethodNotAllowed
  - 406 NotAcceptable         the answer has no form that `Accept` allows
  - 408 TooSlow               the request arrived too slowly
  - 409 Conflict              a model of that name exists already, or there are too many models
  - 413 BodyTooLarge, ImageTooLarge, TooManyInstances
  - 415 UnsupportedMediaType  the body is neither an image, JSON nor a form
        UnsupportedEncoding   the body's Content-Encoding is not supported
  - 421 Misdirected           `Host` names another service
  - 422 UndecodableImage, UnfetchableImage, UnknownParameter, InvalidParameter, UnknownLabel,
        AmbiguousLabel, ClassOutOfRange, InvalidTarget, UnknownLayer, UnknownMethod,
        UnsuitedMethod, UnsuitedModel, Unexplainable
  - 424 ModelFailed           the model could not be loaded
  - 429 QueueFull, RateLimited  with Retry-After
  - 431 HeadTooLarge          the request line and the headers are too large
  - 500 InternalError         a defect of the service
  - 503 Unavailable, OutOfMemory, Overloaded  with Retry-After
  - 504 DeadlineExceeded
  - 507 InsufficientStorage   the disk is full, or a feature's share of it

A feature may add problems of its own. `ConfigError` is not an answer: it is a mistake in the
settings or in models.toml, with which the service does not start.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Literal

Blamed = Literal["batch", "process"]
PROBLEM_JSON: Final = "application/problem+json"
RETRY_AFTER_SECONDS = 1
"""Value of Retry-After if there is no room, or no worker, at the moment."""
FOLDERS: Final = re.compile(r"(?<![\w.:/~-])/(?:[^\s/'\",;:]+/)*(?=[^\s/'\",;:])")
"""The folders of an absolute path. A slash after a letter or a colon is part of an address."""
log = logging.getLogger(__name__)


def one_line(error: Exception) -> str:
    """Return the message of another library's exception on one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]


def typed_line(error: Exception) -> str:
    """Return the type and the message of another library's exception, as `one_line` does."""
    return f"{type(error).__name__}: {one_line(error)}"


def without_folders(text: str) -> str:
    """Return a text in which each absolute path is cut to its last part, because callers must not
    learn where the server keeps its files."""
    return FOLDERS.sub("", text)


def step(name: str) -> str:
    """Return a name, cut to 80 characters, as a part of a JSON pointer (RFC 6901, section 3)."""
    return name[:80].replace("~", "~0").replace("/", "~1")


class ConfigError(Exception):
    """A mistake in the configuration. The message names the mistake and what is allowed."""


class Problem(Exception):
    """An answer that is an error.

    Args:
        detail: one sentence for the caller. It names the wrong value and what is allowed.
        pointer: where in the request the wrong value is: a JSON pointer into the body, or
            /query/NAME or /form/NAME.
        retry_after: seconds after which the caller may try again.
    """

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    example: ClassVar[str] = ""
    """Example of `detail` in openapi/openapi.json, where one class stands for all classes of its
    status."""
    parameter: ClassVar[str | None] = None
    """Name of the parameter that the problem is about, if that is always the same."""

    def __init__(
        self, detail: str, *, pointer: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer
        self.retry_after = retry_after

    @classmethod
    def type(cls) -> str:
        """Return the type URI, made from the class name: urn:gradcam-service:unknown-label."""
        return "urn:gradcam-service:" + re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    def body(self) -> dict[str, Any]:
        """Return the problem document; `error` repeats `detail` for KServe clients."""
        document = {
            "type": self.type(),
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "error": self.detail,
        }
        return document if self.pointer is None else {**document, "pointer": self.pointer}

    def written(self) -> tuple[dict[str, str], bytes]:
        """Return the headers and the body of the HTTP answer."""
        body = json.dumps(self.body()).encode()
        about = {"content-type": PROBLEM_JSON, "content-length": str(len(body))}
        return {**about, **self.headers()}, body

    def headers(self) -> dict[str, str]:
        """Return the answer's further headers, in addition to those about its body."""
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}

    def at(self, pointer: str) -> Problem:
        """Return the same problem at `pointer`, or this one if it already has a pointer."""
        if self.pointer is not None:
            return self
        return type(self)(self.detail, pointer=pointer, retry_after=self.retry_after)


class MalformedRequest(Problem):
    status = 400
    title = "The request cannot be read"
    example = "the body is empty"


class Unauthorized(Problem):
    status = 401
    title = "An API key is needed"
    example = "send an API key"

    def headers(self) -> dict[str, str]:
        # Basic is for browsers, which prompt for a name and a password. The name does not matter;
        # the password is the key.
        challenge = 'Bearer realm="gradcam-service", Basic realm="gradcam-service"'
        return {"WWW-Authenticate": challenge}


class Forbidden(Problem):
    status = 403
    title = "That is not allowed"
    example = "the key 'app' has the scope explain"


class UnknownRoute(Problem):
    status = 404
    title = "There is nothing at this address"


class UnknownModel(Problem):
    status = 404
    title = "There is no such model"
    example = "there is no model 'resnet'"


class MethodNotAllowed(Problem):
    status = 405
    title = "This address does not answer that method"

    def __init__(self, detail: str, *, allowed: Sequence[str] = (), **more: Any) -> None:
        super().__init__(detail, **more)
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {"Allow": ", ".join(self.allowed)}


class NotAcceptable(Problem):
    status = 406
    title = "The answer has no form that Accept allows"
    example = "Accept is 'text/plain'"


class TooSlow(Problem):
    status = 408
    title = "The request arrived too slowly"
    example = "the request had not arrived after 10 s"


class Conflict(Problem):
    status = 409
    title = "The model cannot be added or removed now"
    example = "there is a model 'resnet50' already"


class BodyTooLarge(Problem):
    status = 413
    title = "The body is too large"
    example = "the body has 11000000 bytes"


class ImageTooLarge(Problem):
    status = 413
    title = "The image has too many pixels"


class TooManyInstances(Problem):
    status = 413
    title = "The request has too many instances"


class UnsupportedMediaType(Problem):
    status = 415
    title = "The body's media type is not supported"
    example = "no Content-Type"


class UnsupportedEncoding(Problem):
    status = 415
    title = "The body's encoding is not supported"

    def headers(self) -> dict[str, str]:
        return {"Accept-Encoding": "gzip, deflate"}


class Misdirected(Problem):
    status = 421
    title = "The service does not have that name"
    example = "the service is not known by the name 'evil.example'"


class UndecodableImage(Problem):
    status = 422
    title = "The bytes are not a readable image"


class UnfetchableImage(Problem):
    status = 422
    title = "The image cannot be fetched from its address"


class UnknownParameter(Problem):
    status = 422
    title = "There is no such parameter"


class InvalidParameter(Problem):
    status = 422
    title = "A parameter has a value that is not allowed"


class UnknownLabel(Problem):
    status = 422
    parameter = "target"
    title = "The model has no class of that name"
    example = "no class is called 'catt'"


class AmbiguousLabel(Problem):
    status = 422
    parameter = "target"
    title = "The label names more than one class"


class ClassOutOfRange(Problem):
    status = 422
    parameter = "target"
    title = "The model has no class of that index"


class InvalidTarget(Problem):
    status = 422
    parameter = "target"
    title = "The target cannot be explained"


class UnknownLayer(Problem):
    status = 422
    parameter = "layer"
    title = "No map can be made at that layer"


class UnknownMethod(Problem):
    status = 422
    parameter = "method"
    title = "There is no such method"


class UnsuitedModel(Problem):
    status = 422
    title = "The model does not do this kind of work"


class UnsuitedMethod(Problem):
    status = 422
    parameter = "method"
    title = "The method does not work with this model"


class UnsuitedMetric(Problem):
    status = 422
    parameter = "metrics"
    title = "The map cannot be judged by that metric"


class InvalidRegion(Problem):
    status = 422
    parameter = "region"
    title = "The region cannot be used"


class Unexplainable(Problem):
    status = 422
    title = "The model gives no explanation for this image"


class ModelFailed(Problem):
    """A model that could not be loaded. Trying again does not help, so the status is not 503."""

    status = 424
    title = "The model could not be loaded"
    example = "model 'x' could not be loaded: cannot import 'x'; DELETE it, and add it again"


class QueueFull(Problem):
    status = 429
    title = "Too many requests are waiting"
    example = "256 items are waiting"


class RateLimited(Problem):
    status = 429
    title = "The key has made as many requests as it may"


class HeadTooLarge(Problem):
    status = 431
    title = "The request's head is too large"
    example = "101 headers"


class InternalError(Problem):
    status = 500
    title = "The service failed"
    example = "the service failed; its log has the cause"


def unexpected(what: str, told: str = "the service failed at this image") -> InternalError:
    """Log the exception that is being handled, and return the problem for the caller.

    Args:
        what: what failed, for the log.
        told: the first part of the caller's message; the second part says that the log has the
            cause.
    """
    log.exception("%s failed", what)
    return InternalError(f"{told}; its log has the cause")


class Unavailable(Problem):
    """The service cannot answer at the moment.

    Args:
        blamed: what ended during the work on this image, if anything: "batch" if the model's worker
            was abandoned because of this image or another one of its batch, "process" if the whole
            process ended, perhaps because of another request.
    """

    status = 503
    title = "The service is not ready"
    example = "still loading: efficientnet-lite0"

    def __init__(
        self,
        detail: str,
        *,
        pointer: str | None = None,
        retry_after: int | None = RETRY_AFTER_SECONDS,
        blamed: Blamed | None = None,
    ) -> None:
        super().__init__(detail, pointer=pointer, retry_after=retry_after)
        self.blamed = blamed


class OutOfMemory(Problem):
    status = 503
    title = "The device has too little memory for the image"


class Overloaded(Problem):
    status = 503
    title = "The service holds as much as it may"


class DeadlineExceeded(Problem):
    status = 504
    title = "The answer took too long"
    example = "not ready after 30 s"


class InsufficientStorage(Problem):
    status = 507
    title = "There is no room on the disk"
    example = "the disk is full"


PASSING: Final = (DeadlineExceeded, OutOfMemory, QueueFull, Unavailable)
"""Problems after which another try may succeed, because the image may not be the cause."""
MOST_TRIES: Final = 3
"""Maximum number of tries, including the first, for an image that fails with such a problem."""
PAUSE_SECONDS: Final = 1.0
"""Pause between two tries."""
