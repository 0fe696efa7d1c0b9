"""Which problems of an image are temporary, and how often the image is tried again."""

from __future__ import annotations

from typing import Final

from service.core.errors import DeadlineExceeded, OutOfMemory, QueueFull, Unavailable

PASSING: Final = (DeadlineExceeded, OutOfMemory, QueueFull, Unavailable)
"""Problems after which another try may succeed, because the image is not their only cause."""
MOST_TRIES: Final = 3
"""Maximum number of tries, the first one included, of an image that fails with such a problem."""
PAUSE_SECONDS: Final = 1.0
"""Pause between two tries."""
