"""A process that asks for health again and again, so that only the service can delay an answer.

    python tests/chaos/probing.py PORT …

Prints for each probe its port, when it was sent, how long it took and its status, 0 for none.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

PAUSE_SECONDS = 0.02
GIVE_UP_SECONDS = 30
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True)
class Probe:
    port: int
    sent: float
    """On the clock `time.monotonic`, which is that of all processes."""
    seconds: float
    status: int


class Probes:
    """The probes that were sent so far."""

    def __init__(self) -> None:
        self._found: list[Probe] = []
        self._news = asyncio.Event()

    def add(self, probe: Probe) -> None:
        self._found.append(probe)
        self._news.set()

    async def between(self, begun: float, ended: float, port: int) -> list[Probe]:
        """Those of a port that were in progress in that time; the last one is sent after it."""
        while True:
            found = [each for each in self._found if each.port == port]
            if found and found[-1].sent > ended:
                return [each for each in found if each.sent + each.seconds >= begun]
            self._news.clear()
            await self._news.wait()

    def forget(self) -> None:
        self._found.clear()


@asynccontextmanager
async def probing(*ports: int) -> AsyncIterator[Probes]:
    """Probe these ports while the block is open."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, *map(str, ports)), stdout=asyncio.subprocess.PIPE
    )
    probes = Probes()

    async def read() -> None:
        assert process.stdout
        async for line in process.stdout:
            if not line.endswith(b"\n"):  # the process was killed while it wrote
                return
            port, sent, seconds, status = line.split()
            probes.add(Probe(int(port), float(sent), float(seconds), int(status)))

    reading = asyncio.create_task(read())
    try:
        yield probes
    finally:
        process.kill()
        await reading
        await process.wait()


async def probe(port: int) -> int:
    """The status of the answer; 0 if there is none."""
    try:
        async with asyncio.timeout(GIVE_UP_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(REQUEST)
                return int((await reader.read()).split(b" ", 2)[1])
            finally:
                writer.close()
    except (OSError, IndexError, TimeoutError):
        return 0


async def main(*ports: int) -> None:
    async def ask(port: int) -> None:
        while True:
            sent = time.monotonic()
            status = await probe(port)
            print(f"{port} {sent} {time.monotonic() - sent} {status}", flush=True)
            await asyncio.sleep(PAUSE_SECONDS)

    await asyncio.gather(*map(ask, ports))


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
