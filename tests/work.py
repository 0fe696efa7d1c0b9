"""How much work a call is, counted and not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def work_of(call: Callable[[], object]) -> int:
    """Calls of functions in this thread, and the letters or bytes of the texts whose methods they
    are. What operators and the insides of functions in C cost does not count."""
    work = 0

    def note(frame: FrameType, event: str, what: Any) -> None:
        nonlocal work
        if event in ("call", "c_call"):
            work += 1
            if isinstance(text := getattr(what, "__self__", None), (str, bytes, bytearray)):
                work += len(text)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return work
