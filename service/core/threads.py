"""The threads of numerical libraries: only torch starts several, and they wait only briefly.

A model's engine computes with as many threads as it has cores. Each picture is decoded and drawn in
one separate thread. If OpenCV and NumPy's BLAS started more threads there, these would take cores
from the engine: OpenBLAS's threads spin for some 25 ms while they wait for their next work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import cv2
from threadpoolctl import ThreadpoolController

WAITING: Final = {"OMP_WAIT_POLICY": "active", "GOMP_SPINCOUNT": "10000"}
"""Variables of GNU's OpenMP, which runs torch's threads. A waiting thread spins for about half a
millisecond, which is as fast as the default and leaves the cores to the threads that decode and
draw; by default it spins for 3 to 14 ms. `active` sets how long a thread spins while more threads
have been started than there are cores: 1,000 turns instead of 100."""


@contextmanager
def one_each() -> Iterator[None]:
    """Make OpenCV and NumPy compute in the calling thread while the block is open. torch's own
    libraries are not affected."""
    controller = ThreadpoolController()
    others = [
        library.filepath
        for library in controller.lib_controllers
        if library.user_api == "blas" and "torch" not in library.filepath
    ]
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        with controller.select(filepath=others).limit(limits=1):
            yield
    finally:
        cv2.setNumThreads(threads)


def spin_briefly() -> None:
    """Set how long torch's threads spin while they wait, in this process and those that it starts,
    unless the environment sets it. Call this before torch is imported."""
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
