"""Clients who drip, in a process of their own: else it would be they who hold up the honest ones.

    python tests/chaos/drippers.py PORT COUNT SECONDS

Prints, as JSON, for how long each of their connections lived.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time

HEAD = b"POST /v1/models/calm:explain HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
BEGINNINGS = (b"", HEAD, HEAD + b"Content-Length: 100000\r\n\r\n")
GIVE_UP_SECONDS = 20


async def drip(port: int, beginning: bytes, ending: float, lives: list[float]) -> None:
    """A byte a second, or nothing at all; whoever is cut off comes back."""
    await asyncio.sleep(random.random())
    while time.monotonic() < ending:
        opened = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(beginning)
        with contextlib.suppress(OSError):
            while not reader.at_eof() and time.monotonic() - opened < GIVE_UP_SECONDS:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(10_000), 1)
                if beginning:
                    writer.write(b"x")
        writer.close()
        lives.append(time.monotonic() - opened)


async def main(port: int, count: int, seconds: float) -> None:
    lives: list[float] = []
    ending = time.monotonic() + seconds
    await asyncio.gather(*(drip(port, BEGINNINGS[n % 3], ending, lives) for n in range(count)))
    print(json.dumps(lives))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
