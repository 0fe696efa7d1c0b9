"""What comes before the work on any request for it: read, fetched, counted, with its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Final, Generic

from starlette.requests import Request

from service.core.errors import MalformedRequest, Problem
from service.core.settings import Settings
from service.engine.manager import ModelManager
from service.engine.replicas import Replicas
from service.engine.timings import Timings
from service.http.requests import read_instances
from service.limits.admission import Admission
from service.limits.fetch import Allowance, Fetcher
from service.limits.timeouts import deadline
from service.pipeline.instances import Instance, P, Remote

DRAWING_SHARE: Final = 0.2
"""Of a request's time that is kept for drawing and sending."""


@dataclass(frozen=True, eq=False)
class RequestContext(Generic[P]):
    """A request that has been read."""

    replicas: Replicas
    instances: list[Instance[P]]
    timings: Timings
    seconds: float
    """That it may take."""
    until: float
    """Of `time.monotonic`: its deadline."""

    @property
    def passes_until(self) -> float:
        """Of `time.monotonic`: when methods of many passes end, so that what they have can be
        drawn and sent."""
        return self.until - self.seconds * DRAWING_SHARE

    @property
    def seconds_left(self) -> float:
        return max(self.until - monotonic(), 0.0)


async def fill(
    instances: list[Instance[P]], fetcher: Fetcher, allowance: Allowance
) -> list[Instance[P]]:
    """The instances with the bytes of images that they only name; a problem where there are none
    to be had."""

    async def filled(instance: Instance[P]) -> Instance[P]:
        if not isinstance(instance.image, Remote):
            return instance
        try:
            image: bytes | Problem = await fetcher.fetch(instance.image.url, allowance)
        except Problem as problem:
            image = problem.at(instance.pointer)
        return replace(instance, image=image)

    if not any(isinstance(each.image, Remote) for each in instances):
        return instances
    return list(await asyncio.gather(*map(filled, instances)))


class Reception:
    """Where requests for work on a model come in."""

    def __init__(
        self, *, manager: ModelManager, admission: Admission, fetcher: Fetcher, settings: Settings
    ) -> None:
        self._manager = manager
        self._admission = admission
        self._fetcher = fetcher
        self._settings = settings

    @asynccontextmanager
    async def receive(
        self, request: Request, model: str, parameters: type[P]
    ) -> AsyncIterator[RequestContext[P]]:
        """Read a request; the block has until its deadline, and its images count as long.

        Raises:
            Problem: where the request as a whole cannot be read, or is not let in.
        """
        replicas = self._manager.replicas(model)
        timings = Timings()
        seconds = self._patience(request)
        until = monotonic() + seconds
        # More than may wait could never be let in together.
        most = min(self._settings.max_instances, self._settings.max_queue)
        async with deadline(seconds):
            read = await read_instances(request, parameters, max_instances=most)
            costly = sum(instance.parameters.costly for instance in read)
            with self._admission.admit(model, len(read), costly=costly):
                allowance = Allowance(self._settings.max_body_bytes)
                read = await fill(read, self._fetcher, allowance)
                yield RequestContext(replicas, read, timings, seconds, until)

    @contextmanager
    def lasting(self, context: RequestContext[P]) -> Iterator[None]:
        """For work that goes on after `receive` is left: while it is open, the images count."""
        costly = sum(instance.parameters.costly for instance in context.instances)
        with self._admission.hold(
            context.replicas.model.name, len(context.instances), costly=costly
        ):
            yield

    def _patience(self, request: Request) -> float:
        """Seconds that a request may take: its caller may want to wait for less."""
        sent = request.headers.get("x-request-timeout")
        if sent is None:
            return self._settings.deadline_seconds
        try:
            seconds = float(sent)
        except ValueError:
            seconds = 0.0
        if not 0 < seconds < float("inf"):
            raise MalformedRequest(
                f"X-Request-Timeout is {sent[:40]!r}; it should be seconds, a number above 0"
            )
        return min(seconds, self._settings.deadline_seconds)
