"""The service as a process of its own, reached over a real socket."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx2

from tests import waiting

ROOT = Path(__file__).parent.parent.parent
RANDOM = random.SystemRandom()  # which no test seeds
READY_SECONDS = 400
"""Longest wait for a service, which on a busy machine may examine three architectures."""


def free_port() -> int:
    """A port that nobody listens at, below those that the system gives to whoever binds port 0: a
    test beside this one would get it before the service binds it."""
    while True:
        port = RANDOM.randrange(10_000, 32_000)
        with suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            return port


Served = tuple[subprocess.Popen[str], httpx2.Client]


@contextmanager
def serving(*arguments: str, tree: Path | str = ROOT, **environment: str) -> Iterator[Served]:
    """The service, once it can explain."""
    with starting(*arguments, tree=tree, **environment) as (process, http):
        until_ready(process, http)
        yield process, http


@contextmanager
def starting(*arguments: str, tree: Path | str = ROOT, **environment: str) -> Iterator[Served]:
    """The service of a tree of the packages, which may still load."""
    port = free_port()
    command = [sys.executable, "-m", "service", "serve", "--port", str(port), *arguments]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            yield process, http
    finally:
        process.kill()
        process.communicate()


def until_ready(process: subprocess.Popen[str], http: httpx2.Client) -> list[httpx2.Response]:
    """What /readyz said on the way to 200."""
    answers: list[httpx2.Response] = []

    def is_ready() -> bool:
        assert process.poll() is None, process.communicate()
        with suppress(httpx2.ConnectError):
            answers.append(http.get("/readyz"))
        return bool(answers) and answers[-1].status_code == 200

    waiting.until(is_ready, READY_SECONDS)
    return answers
