"""Copy the tensors of a batch from an accelerator to the host, all in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A point in a device's queue of work."""

    def synchronize(self) -> None:
        """Wait until the device has come to it, without holding the interpreter's lock."""


class Copy:
    """Tensors without a graph, on their way to the CPU. Those on an accelerator are joined there
    and copied to pinned memory at once: each copy alone would wait for the device.

    Args:
        tensors: any dtypes and shapes; on the CPU, or all on one device.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._found = [each.detach() if each.requires_grad else each for each in tensors]
        there = [n for n, tensor in enumerate(self._found) if tensor.device.type != "cpu"]
        # A view of bytes as numbers begins at a multiple of their size: the largest come first.
        self._there = sorted(there, key=lambda number: -self._found[number].element_size())
        if there:
            parts = [
                self._found[number].contiguous().flatten().view(torch.uint8)
                for number in self._there
            ]
            self._sizes = [len(part) for part in parts]
            joined = torch.cat(parts)
            cuda = joined.device.type == "cuda"
            self._copied = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=cuda)
            self._copied.copy_(joined, non_blocking=cuda)
        self._event = end_of_queue(self._found)

    @property
    def waits(self) -> bool:
        """Whether the device is yet to compute the tensors, as far as is known."""
        return self._event is not None

    def wait(self) -> list[Tensor]:
        """Return the tensors, once they are there. May be called in any thread."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        found = list(self._found)
        if self._there:
            for number, part in zip(
                self._there, torch.split(self._copied, self._sizes), strict=True
            ):
                tensor = found[number]
                # A copy, because a view would keep the pinned memory of the whole batch.
                found[number] = part.clone().view(tensor.dtype).view(tensor.shape)
        return found


def end_of_queue(tensors: Sequence[Tensor]) -> Event | None:
    """Return the end of what the device of some tensors has to do by now; None if that was done
    before the call returned, as on a CPU."""
    there = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), None)
    if there is None:
        return None
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(there))
    event: Event = done
    return event


def on_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors as a `Copy` does, when they are there."""
    return Copy(tensors).wait()
