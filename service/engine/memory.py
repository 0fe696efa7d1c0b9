"""Errors that report exhausted memory."""

from __future__ import annotations

import torch

NO_MEMORY = "can't allocate memory"
"""Part of the RuntimeError's message by which torch's CPU allocator reports that memory is
exhausted."""


def is_of_memory(error: Exception) -> bool:
    """Return whether the error says that memory is exhausted."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or NO_MEMORY in str(error)
