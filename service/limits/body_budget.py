"""A limit on the memory that the bodies of all requests take together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.core.errors import RETRY_AFTER_SECONDS, Overloaded
from service.core.metrics import Metrics


class BodyBudget:
    """Counts the bytes of bodies in memory.

    Args:
        most: maximum number of bytes of all bodies.
    """

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._held = 0
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
            self._held += more
            if more > 0 and self._held > self._most:
                self._metrics.rejected.labels(reason="bodies too large").inc()
                raise Overloaded(
                    "the bodies of all requests together are larger than the service may hold; "
                    "try again",
                    retry_after=RETRY_AFTER_SECONDS,
                )

        try:
            yield hold
        finally:
            self._held -= mine
