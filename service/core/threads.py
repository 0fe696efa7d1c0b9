"""Who may start threads: torch alone.

A model's engine computes with as many threads as it has cores. Pictures are decoded and drawn in
threads of their own, one each; if OpenCV and the BLAS behind NumPy started more from there, those
would take the engine's cores: OpenBLAS's wait for their next work spinning, for some 25 ms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import cv2
from threadpoolctl import ThreadpoolController


@contextmanager
def one_each() -> Iterator[None]:
    """While it is open, OpenCV and NumPy compute in the thread that calls them; torch's own
    libraries are left alone."""
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
