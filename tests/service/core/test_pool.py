"""Threads that yield the cores to the event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from service.core.pool import PRIORITIES, Pool


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_the_event_loop_comes_before_the_threads_and_interactive_ones_before_the_others() -> None:
    async def asked() -> list[int]:
        found = []
        for priority in PRIORITIES:
            with Pool("photos", 1, priority=priority) as pool:
                found.append(await pool.run(niceness))
        return found

    own = niceness()
    interactive, background = asyncio.run(asked())
    assert own < interactive < background or interactive == 19
    assert niceness() == own
