"""The service under attack: a process of its own, its vital signs, and a client that is quick."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil
from PIL import Image

from tests import waiting
from tests.service.live import free_port

ROOT = Path(__file__).parent.parent.parent
IDLE_SECONDS = 3.0


@dataclass(frozen=True)
class Vitals:
    """What the serving processes use together: bytes of memory, descriptors and threads."""

    resident: int
    descriptors: int
    threads: int


class Stage:
    """A running service."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, hooks: Path) -> None:
        self.process = process
        self.port = port
        self._hooks = hooks

    @property
    def engine(self) -> psutil.Process:
        """The process that holds the models: the supervisor's youngest grandchild.

        Raises:
            ValueError: if there is none at the moment.
        """
        supervisor = psutil.Process(self.process.pid)
        found = {*supervisor.children(recursive=True)} - {*supervisor.children()}
        return max(found, key=lambda each: (len(each.parents()), each.create_time()))

    @property
    def door(self) -> psutil.Process:
        """The process that receives requests.

        Raises:
            ValueError: if there is none at the moment.
        """
        found = psutil.Process(self.process.pid).children()
        return max(
            (each for each in found if "spawn_main" in " ".join(each.cmdline())),
            key=psutil.Process.create_time,
        )

    @property
    def serving(self) -> list[psutil.Process]:
        """The processes that serve, as far as there are any."""
        found = []
        for which in ("door", "engine"):
            with suppress(psutil.NoSuchProcess, ValueError):
                found.append(getattr(self, which))
        return found

    def vitals(self) -> Vitals:
        found = self.serving
        return Vitals(
            sum(each.memory_info().rss for each in found),
            sum(each.num_fds() for each in found),
            sum(each.num_threads() for each in found),
        )

    @property
    def hooks(self) -> int:
        """On the modules of a model whose factory tells: see `hostile.watched`."""
        time.sleep(1.2)
        return int(self._hooks.read_text())

    def stop(self, seconds: float = 40) -> int:
        """Its exit status, which has to come within so many seconds."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


@contextmanager
def staged(*models: str, wait: bool = True, **environment: str) -> Iterator[Stage]:
    """Serve the models, given as TOML entries or as the name of a factory in `models`."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        catalog = Path(folder, "models.toml")
        catalog.write_text("\n".join(map(_entry, models)))
        given = {
            **os.environ,
            "GRADCAM_RUNTIME": "torch",  # models that sleep or die do so while PyTorch runs them
            "PYTHONPATH": str(ROOT),
            "GRADCAM_PORT": str(port),
            # Attacks that are about something else ask as fast as they can.
            "GRADCAM_DELAY_TOLERANCE": "0",
            "GRADCAM_MODELS": str(catalog),
            "GRADCAM_LOG_LEVEL": "error",
            "CHAOS_HOOKS": str(Path(folder, "hooks")),
            **{f"GRADCAM_{name.upper()}": value for name, value in environment.items()},
        }
        given = {name: value for name, value in given.items() if value}  # "": as if it were not set
        process = subprocess.Popen(
            [sys.executable, "-m", "service", "serve"],
            cwd=ROOT,
            env=given,
            stdout=subprocess.DEVNULL,
        )
        stage = Stage(process, port, Path(folder, "hooks"))
        try:
            if wait:
                until_ready(stage)
            yield stage
        finally:
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(recursive=True):
                    each.kill()
            process.kill()
            process.wait()


def _entry(model: str) -> str:
    if "=" in model:
        return f"[[models]]\n{model}\n"
    factory = "tiny" if model == "calm" else model
    return (
        f'[[models]]\nname = "{model}"\nsource = "factory:tests.zoo.factories:{factory}"\n'
        'weights = "none"\ninput_size = 8\nmean = [0, 0, 0]\nstd = [1, 1, 1]\n'
    )


def until_ready(stage: Stage, seconds: float = 120) -> float:
    """Seconds until it was."""

    def is_ready() -> bool:
        assert stage.process.poll() is None, "the service ended"
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", stage.port), timeout=2) as one,
        ):
            one.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return one.recv(100).startswith(b"HTTP/1.1 200")
        return False

    begun = time.monotonic()
    waiting.until(is_ready, seconds)
    return time.monotonic() - begun


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float

    def json(self) -> Any:
        return json.loads(self.body)


class NoReply(Exception):
    """A connection ended without one."""


@dataclass
class Client:
    """Kept-alive connections to one port, as many as are needed at once."""

    port: int
    headers: str = ""
    _free: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = field(
        default_factory=list
    )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for _, _, writer in self._free:
            writer.close()

    async def ask(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        kind: str = "image/png",
        accept: str = "*/*",
        more: str = "",
    ) -> Reply:
        """
        Args:
            more: lines of further headers.

        Raises:
            NoReply: if the connection ends before there is one.
            ConnectionRefusedError: if there is none.
        """
        started = time.perf_counter()
        try:
            reader, writer = await self._connection()
        except ConnectionRefusedError:
            raise
        except OSError as error:
            raise NoReply(repr(error)) from None
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            f"Accept: {accept}\r\nContent-Length: {len(body)}\r\n{self.headers}{more}\r\n"
        )
        try:
            writer.write(head.encode() + body)
            await writer.drain()
            status, headers, found = await _reply(reader)
        except (OSError, EOFError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise NoReply(repr(error)) from None
        except BaseException:  # cancelled, say
            writer.close()
            raise
        if headers.get("connection") == "close":
            writer.close()
        else:
            self._free.append((time.perf_counter(), reader, writer))
        return Reply(status, headers, found, time.perf_counter() - started)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            since, reader, writer = self._free.pop()
            if time.perf_counter() - since < IDLE_SECONDS and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection("127.0.0.1", self.port)


async def _reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    if headers.get("transfer-encoding") == "chunked":
        found = b""
        while size := int(await reader.readline(), 16):
            found += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    else:
        found = await reader.readexactly(int(headers.get("content-length", "0")))
    return int(head[0].split(" ")[1]), headers, found


def photo(seed: int, width: int = 16, height: int = 16) -> bytes:
    """Noise as a PNG; no two seeds alike."""
    rng = np.random.default_rng(seed)
    file = BytesIO()
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def plain(shade: int) -> bytes:
    """A picture of one gray."""
    file = BytesIO()
    Image.new("RGB", (16, 16), (shade, shade, shade)).save(file, "PNG")
    return file.getvalue()
