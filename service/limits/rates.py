"""Rates of keys: at most so many requests in any period of a given length."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from pathlib import Path
from time import time

import numpy as np
from filelock import FileLock
from limits import RateLimitItem
from numpy.typing import NDArray


class Rates:
    """Counts the requests of each key exactly: a request is admitted if fewer than the allowed
    number were admitted in the period that ends now (a moving window).

    The times of the admitted requests form a ring, as long as the allowed number. The oldest of
    them is therefore where the next one is written, so a request costs two memory accesses.

    Args:
        folder: folder with the rings of all processes of the service; None if this process is
            alone, so that the rings are in its memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._rings: dict[str, _Ring] = {}

    def hit(self, rate: RateLimitItem, name: str) -> float | None:
        """Count a request if the rate allows it.

        Returns:
            None if it is allowed, else the seconds after which the next one will be.
        """
        ring = self._rings.get(name)
        if ring is None:
            ring = self._rings[name] = _Ring(self._folder, name, rate.amount)
        return ring.hit(rate.get_expiry())


class _Ring:
    """The times of the last admitted requests of one key. The first number is the index of the
    oldest one."""

    def __init__(self, folder: Path | None, name: str, length: int) -> None:
        self._length = length
        self._lock: FileLock | nullcontext[None] = nullcontext()
        self._times: NDArray[np.float64] = np.zeros(0)
        if folder is None:
            self._times = np.zeros(length + 1)
            return
        file = folder / f"rate-{hashlib.sha256(name.encode()).hexdigest()[:32]}"
        self._lock = FileLock(f"{file}.lock")
        with self._lock:
            if not file.exists():
                with file.open("wb") as opened:
                    opened.truncate(8 * (length + 1))
        self._times = np.memmap(file, np.float64, "r+", 0, (length + 1,))

    def hit(self, seconds: float) -> float | None:
        with self._lock:
            now, oldest = time(), 1 + int(self._times[0])
            wait = float(self._times[oldest]) + seconds - now
            if wait > 0:
                return wait
            self._times[oldest] = now
            self._times[0] = oldest % self._length
        return None
