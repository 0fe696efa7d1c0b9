"""Rates of keys: at most so many requests in any period of a given length."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from time import monotonic
from typing import Final

WRITTEN: Final = re.compile(
    r"([0-9]{1,15})\s*(?:/|per)\s*([0-9]{1,9})?\s*(second|minute|hour|day|month|year)s?",
    re.IGNORECASE,
)
MOST: Final = 10_000_000
"""Largest number of requests of a rate: each takes 8 bytes."""
SECONDS: Final = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86_400,
    "month": 30 * 86_400,
    "year": 360 * 86_400,
}


@dataclass(frozen=True)
class Rate:
    """At most `amount` requests in `periods` periods, each of them a `unit` of `SECONDS`."""

    amount: int
    periods: int
    unit: str

    @classmethod
    def parsed(cls, text: str) -> Rate:
        """Return the rate of a text like "600/minute" or "10 per 2 hours".

        Raises:
            ValueError: if the text is not one rate, of 1 to `MOST` requests in at least one period.
        """
        written = WRITTEN.fullmatch(text.strip())
        if written is None:
            raise ValueError("it should be one rate, like 600/minute")
        amount, periods = int(written[1]), int(written[2] or 1)
        if not (0 < amount <= MOST and periods):
            raise ValueError(f"it should be 1 to {MOST} requests in 1 or more {written[3]}s")
        return cls(amount, periods, written[3].lower())

    @property
    def seconds(self) -> int:
        return self.periods * SECONDS[self.unit]

    def __str__(self) -> str:
        return f"{self.amount} per {self.periods} {self.unit}"


class Rates:
    """Counts the requests of each key exactly: a request is admitted if fewer than the allowed
    number were admitted in the period that ends now (a moving window).

    The times of the admitted requests form a ring, as long as the allowed number. The oldest of
    them is therefore where the next one is written, so a request costs two memory accesses. The
    first number of a ring is the index of the oldest time. The clock is the machine's monotonic
    one, which all its processes share and nobody sets back.

    Args:
        folder: folder with the rings of all processes of the service; None if this process is
            alone, so that the rings are in its memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._rings: dict[tuple[str, Rate], memoryview[float]] = {}

    def hit(self, rate: Rate, name: str) -> float | None:
        """Count a request if the rate allows it.

        Returns:
            None if it is allowed, else the seconds after which the next one will be.
        """
        if self._folder is None:
            ring = self._rings.get((name, rate))
            if ring is None:
                ring = memoryview(bytearray(8 * (rate.amount + 1))).cast("d")
                self._rings[name, rate] = ring
            return _hit(ring, rate.seconds)
        # A rate that the operator has changed has another ring.
        told = f"{name} {rate.amount} {rate.seconds}"
        file = self._folder / f"rate-{hashlib.sha256(told.encode()).hexdigest()[:32]}"
        with _shared(file, rate.amount + 1) as ring:
            return _hit(ring, rate.seconds)


def _hit(ring: memoryview[float], seconds: float) -> float | None:
    now, place = monotonic(), 1 + int(ring[0])
    oldest = float(ring[place])  # 0: there is none yet
    if oldest and oldest + seconds > now:
        return oldest + seconds - now
    ring[place] = now
    ring[0] = place % (len(ring) - 1)
    return None


@contextmanager
def _shared(file: Path, length: int) -> Iterator[memoryview[float]]:
    """Open a ring, which is made if it is not there, while no other process has it open. The lock
    ends with the process that holds it, and the next one gets it within microseconds."""
    import fcntl  # not on Windows, where no processes share rings

    with file.open("a+b", buffering=0) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        if opened.seek(0, 2) == 0:
            opened.write(bytes(8 * length))
        with (
            mmap(opened.fileno(), 8 * length) as mapped,
            memoryview(mapped) as every,
            every.cast("d") as ring,
        ):
            yield ring
