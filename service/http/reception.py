"""The steps before the work on a request: reading, deadline, admission and fetching of images."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final, Generic

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request

from service.backend.interface import Backend, ModelBackend
from service.backend.timings import Timings
from service.core.errors import DeadlineExceeded, Forbidden, Problem
from service.core.settings import CoreSettings
from service.http.guard import asked_seconds
from service.http.requests import read_instances
from service.limits.admission import Admission, AdmittedRequest
from service.pipeline.instances import Instance, P, Remote

DRAWING_SHARE: Final = 0.2
"""Share of a request's time that is kept for drawing and sending."""


@dataclass
class Allowance:
    """Number of bytes that the images of one request may still have."""

    left: int


Fetch = Callable[[str, Allowance], Awaitable[bytes]]
"""Returns the bytes of the image at an address, and subtracts them from the allowance."""
Choose = Callable[[str, Sequence[Instance[Any]]], Awaitable[list[Instance[Any]]]]
"""Completes the instances of a request for a model of that name."""


@asynccontextmanager
async def deadline(seconds: float, *, of: float | None = None) -> AsyncIterator[None]:
    """Limit the time of the block.

    Args:
        of: seconds of the whole request, for the error's message, if the block has only the rest.

    Raises:
        DeadlineExceeded: if the block takes longer.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            f"the answer was not ready after {of or seconds:g} s; "
            "send fewer or smaller images, or ask for less: a smaller budget, fewer max_tokens"
        ) from None


@asynccontextmanager
async def while_connected(request: Request) -> AsyncIterator[None]:
    """Cancel the block when the caller disconnects. The request's body must have been read before.

    Raises:
        ClientDisconnect: as soon as the connection is closed; what the block awaits is cancelled.
    """
    worker = asyncio.current_task()
    assert worker
    left = False

    async def watch() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        worker.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if left and not worker.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        watcher.cancel()


@dataclass(frozen=True, eq=False)
class RequestContext(Generic[P]):
    """A request that has been read and admitted."""

    replicas: ModelBackend
    instances: list[Instance[P]]
    timings: Timings
    seconds: float
    """Seconds that the request may take."""
    until: float
    """Deadline of the request, a time of `time.monotonic`."""
    hold: Callable[[int], None]
    """Is called with the bytes of memory that the answer takes. It raises `Overloaded` if the
    service has no memory for them."""

    @property
    def passes_until(self) -> float:
        """Time of `time.monotonic` at which methods of many passes stop, so that their maps can be
        drawn and sent before the deadline."""
        return self.until - self.seconds * DRAWING_SHARE

    @property
    def seconds_left(self) -> float:
        return max(self.until - monotonic(), 0.0)


async def fetch_none(url: str, allowance: Allowance) -> bytes:
    """Refuse every address: no feature fetches images, or the operator allows no hosts."""
    raise Forbidden("this service fetches no images; send the image's bytes as b64")


async def fill(
    instances: list[Instance[P]], fetch: Fetch, allowance: Allowance
) -> list[Instance[P]]:
    """Return the instances with the images fetched that they name by address. An image that cannot
    be fetched is replaced by the problem."""

    async def filled(instance: Instance[P]) -> Instance[P]:
        if not isinstance(instance.image, Remote):
            return instance
        try:
            image: bytes | Problem = await fetch(instance.image.url, allowance)
        except Problem as problem:
            image = problem.at(instance.pointer)
        return replace(instance, image=image)

    if not any(isinstance(instance.image, Remote) for instance in instances):
        return instances
    return list(await asyncio.gather(*map(filled, instances)))


class Reception:
    """Reads and admits requests for work on a model."""

    def __init__(
        self,
        *,
        manager: Backend,
        admission: Admission,
        settings: CoreSettings,
    ) -> None:
        self._manager = manager
        self._admission = admission
        self._settings = settings
        self.fetch: Fetch = fetch_none
        """Fetches the images that are given by address."""
        self.choosers: Sequence[Choose] = ()
        """Complete the instances of each request, one after the other."""
        # More images than the queue holds cannot be admitted together.
        self.max_instances: Final = min(settings.max_instances, settings.max_queue)
        """Maximum number of images of one request."""

    @asynccontextmanager
    async def receive(
        self, request: Request, model: str, parameters: type[P], body: type[BaseModel]
    ) -> AsyncIterator[RequestContext[P]]:
        """Read and admit a request. The block must end before the request's deadline. The images
        count as in progress until it ends.

        Args:
            body: schema of a body of JSON, with `instances` and `parameters`.

        Raises:
            Problem: if the request as a whole cannot be read, is not admitted, or takes too long.
        """
        state = request.scope["state"]
        place: AdmittedRequest | None = state.get("place")

        async def read() -> list[Instance[P]]:
            return await read_instances(request, parameters, body, max_instances=self.max_instances)

        seconds = self.timeout_of(request)
        admitted = self.admitted(
            model, read, seconds=seconds, place=place, hold=state["hold"], told=state["told"]
        )
        async with admitted as context:
            yield context

    @asynccontextmanager
    async def admitted(
        self,
        model: str,
        read: Callable[[], Awaitable[list[Instance[P]]]],
        *,
        seconds: float,
        place: AdmittedRequest | None,
        hold: Callable[[int], None],
        told: dict[str, Any] | None = None,
    ) -> AsyncIterator[RequestContext[P]]:
        """Admit the instances that `read` returns, as `receive` does.

        Args:
            seconds: seconds that the request may take.
            place: the place that the guard has given to the request.
            hold: counts the memory of the answer, see `RequestContext`.
            told: takes what the log tells of the request, see `ObserveRequests`.

        Raises:
            Problem: if they cannot be read, are not admitted, or take too long.
        """
        replicas = self._manager.replicas(model)
        timings = Timings()
        told = {} if told is None else told
        until = monotonic() + seconds
        async with deadline(seconds):
            instances = await read()
            methods = {name for each in instances for name in each.parameters.known_methods}
            told.update(images=len(instances), methods=sorted(methods), timings=timings)
            costly = sum(instance.parameters.costly for instance in instances)
            with self._admission.admit(model, len(instances), costly=costly, place=place):
                allowance = Allowance(self._settings.max_body_bytes)
                instances = await fill(instances, self.fetch, allowance)
                for choose in self.choosers:
                    instances = await choose(model, instances)
                yield RequestContext(replicas, instances, timings, seconds, until, hold)
                if place:
                    place.was_answered, place.batch = True, timings.batch_size

    @contextmanager
    def lasting(self, context: RequestContext[P]) -> Iterator[None]:
        """Count the images as in progress while the block is open, for work after `receive`."""
        costly = sum(instance.parameters.costly for instance in context.instances)
        with self._admission.hold(
            context.replicas.model.name, len(context.instances), costly=costly
        ):
            yield

    def timeout_of(self, request: Request) -> float:
        """Return the seconds that a request may take, from now until its answer has been sent; its
        caller may ask for less than the settings allow.

        Raises:
            MalformedRequest: if `X-Request-Timeout` is not a number of seconds.
        """
        seconds = min(self._settings.deadline_seconds, asked_seconds(request.headers))
        request.scope["state"]["until"] = monotonic() + seconds  # see `Deliver`
        return seconds
