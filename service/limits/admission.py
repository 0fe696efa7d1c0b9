"""How many images may be in the service at once, decided before anything is done for them."""

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
    """Counts the images of each model that are decoded, wait, are explained or drawn.

    Args:
        room: of one model. Half of it is open to images that need many forward passes or many
            maps, so that these never keep out the others.
    """

    def __init__(self, room: int, *, metrics: Metrics) -> None:
        self._room = room
        self._metrics = metrics
        self.admitted = 0
        """Images that were let in, ever."""
        self._all: Counter[str] = Counter()
        self._costly: Counter[str] = Counter()
        self._left = 0.0

    def in_work(self, model: str) -> int:
        """Images of a model that were let in and are not done."""
        return self._all[model]

    @property
    def at_rest(self) -> bool:
        """Whether nothing is in work."""
        return not any(self._all.values())

    def lately(self, seconds: float) -> bool:
        """Whether something was in work so shortly ago."""
        return monotonic() - self._left < seconds

    def check(self, model: str, count: int = 1, *, costly: int = 0) -> None:
        """
        Raises:
            QueueFull: if there is no room for `count` images more, `costly` of them costly.
        """
        self._check(self._all, model, count, self._room, "")
        self._check(self._costly, model, costly, -(-self._room // 2), "costly ")

    def turned_away(self, path: bytes) -> Problem | None:
        """Why a request for that path has no room, if it needs some and there is none."""
        work = WORK.match(path)
        try:
            self.check(work[1].decode() if work else "")
        except QueueFull as problem:
            return problem
        return None

    @contextmanager
    def admit(self, model: str, count: int, *, costly: int) -> Iterator[None]:
        """While it is open, these images count.

        Raises:
            QueueFull: if there is no room for them.
        """
        self.check(model, count, costly=costly)
        with self.hold(model, count, costly=costly):
            yield

    @contextmanager
    def hold(self, model: str, count: int, *, costly: int) -> Iterator[None]:
        """The same of images that were let in before."""
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
        # A request that is larger than the room may come when it is empty.
        if count and held[model] and held[model] + count > room:
            self._metrics.rejected.labels(reason="queue full").inc()
            raise QueueFull(
                f"{held[model]} {kind}images are in work for model {model!r}, and at most {room} "
                "may be; try again",
                retry_after=RETRY_AFTER_SECONDS,
            )
