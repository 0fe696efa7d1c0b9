"""A limit on the memory that the bodies of all requests take together."""

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
    def share(self) -> Iterator[Callable[[int], None]]:
        """Yield a function with which one request reports the number of bytes that it holds now.
        Leaving the block releases them.

        Raises:
            Overloaded: from that function, if the bodies of all requests have too many bytes.
        """
        mine = 0

        def hold(size: int) -> None:
            nonlocal mine
            more, mine = size - mine, size
            held = self._counts.add(BODIES, more)
            if more > 0 and held > self._most:
                self._metrics.rejected.labels(reason="bodies too large").inc()
                raise Overloaded(
                    "the bodies of all requests together are larger than the service may hold; "
                    "try again",
                    retry_after=RETRY_AFTER_SECONDS,
                )

        try:
            yield hold
        finally:
            self._counts.add(BODIES, -mine)
