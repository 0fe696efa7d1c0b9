"""What requests hold in memory of their bodies, all together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.core.errors import RETRY_AFTER_SECONDS, Overloaded
from service.core.metrics import Metrics


class BodyBudget:
    """
    Args:
        most: bytes that there may be.
    """

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._held = 0
        self._metrics = metrics

    @contextmanager
    def share(self) -> Iterator[Callable[[int], None]]:
        """One request's: it tells how many bytes it holds now, and holds none when the block is
        left.

        Raises:
            Overloaded: as it tells, if with the others' they are too many.
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
