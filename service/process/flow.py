"""A connection's flow of bytes, and how long it stood still."""

from __future__ import annotations

import asyncio
from time import monotonic

from uvicorn.protocols.http.flow_control import FlowControl


class Flow(FlowControl):
    """Knows how long it was we who did not read."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._paused_at = self._paused = 0.0

    def pause_reading(self) -> None:
        if not self.read_paused:
            self._paused_at = monotonic()
        super().pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self._paused += monotonic() - self._paused_at
        super().resume_reading()

    @property
    def paused_seconds(self) -> float:
        return self._paused + (monotonic() - self._paused_at if self.read_paused else 0.0)
