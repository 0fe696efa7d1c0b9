"""A limit on the images in progress for each model, checked before any work on them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from service.core.errors import RETRY_AFTER_SECONDS, Problem, QueueFull
from service.core.metrics import Metrics
from service.limits.counters import Counts, LocalCounts

WORK = re.compile(rb"^/v1/models/([^/:]+):")
IMAGES: Final = "images"
COSTLY: Final = "costly images"


class Admission:
    """Counts the images of each model in progress: being decoded, waiting, explained or drawn.

    Args:
        room: maximum number of images of one model. Costly images, which need many forward passes
            or many maps, may use half of it, so that they never exclude the others.
        counts: the counts of the whole service; by default, this process is alone.
    """

    def __init__(self, room: int, *, metrics: Metrics, counts: Counts | None = None) -> None:
        self._room = room
        self._metrics = metrics
        self._counts = counts or LocalCounts()
        self.admitted = 0
        """Number of images that this process has admitted since its start."""

    def in_work(self, model: str) -> int:
        """Return the number of images of a model in progress."""
        return self._counts.total(f"{IMAGES} of {model}")

    @property
    def at_rest(self) -> bool:
        """Whether no image is in progress."""
        return not self._counts.total(IMAGES)

    def lately(self, seconds: float) -> bool:
        """Return whether work on images ended within the last `seconds`."""
        return monotonic() - self._counts.touched() < seconds

    def check(self, model: str, count: int = 1, *, costly: int = 0) -> None:
        """Check that there is room for `count` more images, `costly` of which are costly.

        Raises:
            QueueFull: if there is no room for them.
        """
        self._check(model, count, costly, already=False)

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
        # The images are counted before the check: otherwise two processes that check at the same
        # moment would both find room for the last image.
        with self._counted(model, count, costly):
            self._check(model, count, costly, already=True)
            self.admitted += count
            yield

    @contextmanager
    def hold(self, model: str, count: int, *, costly: int) -> Iterator[None]:
        """Count images that were admitted before, until the block is left, without a check."""
        self.admitted += count
        with self._counted(model, count, costly):
            yield

    @contextmanager
    def _counted(self, model: str, count: int, costly: int) -> Iterator[None]:
        names = (IMAGES, count), (f"{IMAGES} of {model}", count), (f"{COSTLY} of {model}", costly)
        for name, number in names:
            self._counts.add(name, number)
        try:
            yield
        finally:
            for name, number in names:
                self._counts.add(name, -number)
            self._counts.touch()

    def _check(self, model: str, count: int, costly: int, *, already: bool) -> None:
        """Check that there is room for images.

        Args:
            already: whether they are counted already.
        """
        half = -(-self._room // 2)
        for kind, number, room in ((IMAGES, count, self._room), (COSTLY, costly, half)):
            held = self._counts.total(f"{kind} of {model}") - (number if already else 0)
            # A request that is larger than the room is admitted if the room is empty.
            if number and held and held + number > room:
                self._metrics.rejected.labels(reason="queue full").inc()
                raise QueueFull(
                    f"{held} {kind} are in work for model {model!r}, and at most {room} may be; "
                    "try again",
                    retry_after=RETRY_AFTER_SECONDS,
                )
