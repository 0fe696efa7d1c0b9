"""Parts of answers that several routes share: media types, tags, problems, instances' results."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from service import __version__
from service.core.errors import NotAcceptable, Problem, unexpected
from service.core.schemas import FailedInstance, ProblemDocument
from service.models.info import ModelInfo
from service.pipeline.instances import Instance, P
from service.pipeline.parameters import Parameters

Result = TypeVar("Result")
Report = TypeVar("Report")


def problem_response(problem: Problem) -> Response:
    headers, body = problem.written()
    return Response(body, problem.status, headers)


def failed(instance: Instance[P], problem: Problem) -> FailedInstance:
    """Return the entry that reports a problem in place of the instance's result."""
    return FailedInstance(
        instance=instance.index,
        id=instance.id,
        error=problem.detail,
        problem=ProblemDocument.model_validate(problem.body()),
    )


async def attempt(
    work: Callable[[Instance[P]], Awaitable[Result]],
    instance: Instance[P],
) -> Result | Problem:
    """Return the result of the work on an instance, or its problem, so that the others go on."""
    try:
        return await work(instance)
    except Problem as problem:
        return problem
    except Exception:
        return unexpected(f"instance {instance.index}")


async def together(
    work: Callable[[Instance[P]], Awaitable[Result]],
    instances: Sequence[Instance[P]],
) -> list[Result | Problem]:
    """Work on all instances at once, and return the results in the instances' order.

    Raises:
        Problem: the problem of the first instance, if every instance failed.
    """
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(work, instance)) for instance in instances]
    results = [task.result() for task in tasks]
    problems = [result for result in results if isinstance(result, Problem)]
    if len(problems) == len(results):
        raise problems[0]
    return results


async def as_ready(
    work: Callable[[Instance[P], Callable[[Report], None]], Awaitable[Result]],
    instances: Sequence[Instance[P]],
) -> AsyncIterator[tuple[Instance[P], Result | Report | Problem]]:
    """Work on all instances at once, and yield each one with the values that its work reports, and
    then with its result, as soon as they are there. Closing the iterator cancels the unfinished
    work."""
    ready: asyncio.Queue[tuple[Instance[P], Result | Report | Problem, bool]] = asyncio.Queue()

    async def put(instance: Instance[P]) -> None:
        def report(value: Report) -> None:
            ready.put_nowait((instance, value, False))

        result = await attempt(lambda one: work(one, report), instance)
        ready.put_nowait((instance, result, True))

    tasks = [asyncio.create_task(put(instance)) for instance in instances]
    left = len(tasks)
    try:
        while left:
            instance, value, last = await ready.get()
            left -= last
            yield instance, value
    finally:
        for task in tasks:
            task.cancel()


def entity_tag(model: ModelInfo, media_type: str, instances: Sequence[Instance[Parameters]]) -> str:
    """Return a tag that is equal for the same images, ids, model weights and parameters as sent.

    The tag is weak, because the last bits of a map may depend on the batch it was computed in.
    """
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{__version__}|{model.name}|{model.fingerprint}|{media_type}".encode())
    for instance in instances:
        if isinstance(instance.image, bytes):
            image = hashlib.blake2b(instance.image, digest_size=16).digest()
        else:
            image = repr(instance.image).encode()
        fit = model.preprocessing.resolved(instance.parameters.fit)  # the default is the model's
        asked = instance.parameters.model_copy(update={"fit": fit}).model_dump_json()
        # For a detector it matters whether `top_k` was given: see `Parameters.boxes`.
        asked += str("top_k" in instance.parameters.model_fields_set)
        digest.update(f"|{instance.id!r}|{asked}|".encode() + image)
    return f'W/"{digest.hexdigest()}"'


def list_of(request: Request, header: str) -> str | None:
    """Return the joined lines of a header that may be sent in several (RFC 9110, 5.3)."""
    return ", ".join(request.headers.getlist(header)) or None


def matches(if_none_match: str | None, tag: str) -> bool:
    """Return whether a caller has the answer of `tag` already (RFC 9110, 13.1.2: weak match)."""
    known = {part.strip().removeprefix("W/") for part in (if_none_match or "").split(",")}
    return tag.removeprefix("W/") in known


def require_one_map(maps: int, media_type: str) -> None:
    """Check that a request asks for one map.

    Raises:
        NotAcceptable: if it asks for another number of maps.
    """
    if maps != 1:
        raise NotAcceptable(
            f"{media_type} holds exactly one map, and this request asks for {maps}; "
            "ask for application/json or application/x-ndjson"
        )


def choose(accept: str | None, offers: Sequence[str]) -> str:
    """Return the offer of highest quality (RFC 9110, 12.5.1); among equals, the first. A missing or
    empty `Accept` allows any offer.

    Raises:
        NotAcceptable: if `Accept` allows no offer; it names the offers.
    """
    ranges = dict(_parse(part) for part in (accept or "").split(",") if part.strip())
    ranges = ranges or {"*/*": 1.0}

    def quality(offer: str) -> float:
        family = offer.partition("/")[0]
        for name in (offer, f"{family}/*", "*/*"):  # the most specific range decides
            if name in ranges:
                return ranges[name]
        return 0.0

    best = max(offers, key=quality)
    if quality(best) == 0:
        raise NotAcceptable(f"Accept is {(accept or '')[:120]!r}; this answers {', '.join(offers)}")
    return best


def _parse(part: str) -> tuple[str, float]:
    """Return the name and the quality of a media range: "image/*;q=0.5" → ("image/*", 0.5)."""
    name, *parameters = (piece.strip().lower() for piece in part.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            try:
                quality = float(value)
            except ValueError:
                quality = 0.0
    return name, quality if 0 <= quality <= 1 else 0.0
