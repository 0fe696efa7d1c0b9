"""A limit on the images in progress for each model, checked before any work on them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from service.core.errors import RETRY_AFTER_SECONDS, Problem, QueueFull
from service.core.metrics import Metrics

WORK = re.compile(rb"^/v1/models/([^/:]+):")


class Admission:
    """Counts the images of each model in progress: being decoded, waiting, explained or drawn.

    Args:
        room: maximum number of images of one model. Costly images, which need many forward passes
            or many maps, may use half of it, so that they never exclude the others.
    """

    def __init__(self, room: int, *, metrics: Metrics) -> None:
        self._room = room
        self._metrics = metrics
        self.admitted = 0
        """Number of images that were admitted since the start."""
        self._all: Counter[str] = Counter()
        self._costly: Counter[str] = Counter()
        self._left = 0.0

    def in_work(self, model: str) -> int:
        """Return the number of images of a model in progress."""
        return self._all[model]

    @property
    def at_rest(self) -> bool:
        """Whether no image is in progress."""
        return not any(self._all.values())

    def lately(self, seconds: float) -> bool:
        """Return whether work on images ended within the last `seconds`."""
        return monotonic() - self._left < seconds

    def check(self, model: str, count: int = 1, *, costly: int = 0) -> None:
        """Check that there is room for `count` more images, `costly` of which are costly.

        Raises:
            QueueFull: if there is no room for them.
        """
        self._check(self._all, model, count, self._room, "")
        self._check(self._costly, model, costly, -(-self._room // 2), "costly ")

    def turned_away(self, path: bytes) -> Problem | None:
        """Return the problem of a request for that path, if it needs room and there is none."""
        work = WORK.match(path)
        try:
            self.check(work[1].decode() if work else "")
        except QueueFull as problem:
            return problem
        return None

    @contextmanager
    def admit(self, model: str, count: int, *, costly: int) -> Iterator[None]:
        """Check that there is room for images, and count them until the block is left.

        Raises:
            QueueFull: if there is no room for them.
        """
        self.check(model, count, costly=costly)
        with self.hold(model, count, costly=costly):
            yield

    @contextmanager
    def hold(self, model: str, count: int, *, costly: int) -> Iterator[None]:
        """Count images that were admitted before, until the block is left, without a check."""
        self.admitted += count
        self._all[model] += count
        self._costly[model] += costly
        try:
            yield
        finally:
            self._all[model] -= count
            self._costly[model] -= costly
            self._left = monotonic()

    def _check(self, held: Counter[str], model: str, count: int, room: int, kind: str) -> None:
        # A request that is larger than the room is admitted if the room is empty.
        if count and held[model] and held[model] + count > room:
            self._metrics.rejected.labels(reason="queue full").inc()
            raise QueueFull(
                f"{held[model]} {kind}images are in work for model {model!r}, and at most {room} "
                "may be; try again",
                retry_after=RETRY_AFTER_SECONDS,
            )
