"""A limit on the memory that the bodies of all requests, and the numbers of their answers, take
together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from service.core.errors import RETRY_AFTER_SECONDS, Overloaded
from service.core.metrics import Metrics
from service.limits.counters import LocalCounts, ServiceCounts

BODIES: Final = "bytes of bodies"


class BodyBudget:
    """Counts the bytes of bodies in memory.

    Args:
        most: maximum number of bytes of all bodies.
        counts: the counts of the whole service; by default, this process is alone.
    """

    def __init__(self, most: int, metrics: Metrics, counts: ServiceCounts | None = None) -> None:
        self._most = most
        self._counts = counts or LocalCounts()
        self._metrics = metrics

    @contextmanager
    def share(self) -> Iterator[Share]:
        """Yield the share of one request. Leaving the block releases it."""
        share = Share(self._count)
        try:
            yield share
        finally:
            self._counts.add(BODIES, -share.held)

    def _count(self, more: int) -> None:
        held = self._counts.add(BODIES, more)
        if more > 0 and held > self._most:
            self._metrics.rejected.labels(reason="bodies too large").inc()
            raise Overloaded(
                "the bodies of all requests and answers together are larger than the service may "
                "hold; try again",
                retry_after=RETRY_AFTER_SECONDS,
            )


class Share:
    """What one request holds. `BodyBudget.share` makes it."""

    def __init__(self, count: Callable[[int], None]) -> None:
        self._count = count
        self._body = 0
        self.held = 0
        """Bytes that the request holds."""

    def __call__(self, size: int) -> None:
        """Report the number of bytes of the request's body that are in memory now.

        Raises:
            Overloaded: if the bodies of all requests have too many bytes.
        """
        more, self._body = size - self._body, size
        self.add(more)

    def add(self, size: int) -> None:
        """Report that the request holds more bytes, for its answer.

        Raises:
            Overloaded: if the bodies of all requests have too many bytes.
        """
        self.held += size
        self._count(size)
