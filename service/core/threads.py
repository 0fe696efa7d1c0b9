"""A limit of one thread for OpenCV and NumPy, so that only torch starts several.

A model's engine computes with as many threads as it has cores. Each picture is decoded and drawn in
one separate thread. If OpenCV and NumPy's BLAS started more threads there, these would take cores
from the engine: OpenBLAS's threads spin for some 25 ms while they wait for their next work.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cv2
from threadpoolctl import ThreadpoolController


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
