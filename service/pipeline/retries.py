"""Which problems of an image may pass, and how often it is tried again."""

from __future__ import annotations

from typing import Final

from service.core.errors import DeadlineExceeded, OutOfMemory, QueueFull, Unavailable

PASSING: Final = (DeadlineExceeded, OutOfMemory, QueueFull, Unavailable)
"""Another try may fare better: the image is not to blame, or not alone."""
MOST_TRIES: Final = 3
"""Of an image that fails for such a reason, the first one among them."""
PAUSE_SECONDS: Final = 1.0
"""Between two tries."""
