"""What `test_fetch.py` reaches, and what it must not: sites with TLS, canaries, a resolver."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from service.features.remote_images.fetch import Fetcher
from service.http.reception import Allowance
from tests.waiting import until_async

SITE = "127.0.0.2"
"""Where the sites are: no public address, so that tests let it pass for one."""
CANARIES = ("127.0.0.1", "::1")
DRIP_SECONDS = 0.02
IMAGE = b"the bytes of an image"


def certificate(folder: Path, name: str) -> Path:
    """A file with a key and a certificate for that name, signed by itself."""
    file = folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-addext", f"subjectAltName=DNS:{name},DNS:two.test"]
    command += ["-addext", "keyUsage=critical,digitalSignature,keyCertSign"]
    subprocess.run(
        [*command, "-keyout", file, "-out", f"{file}.crt"], check=True, capture_output=True
    )
    file.write_text(file.read_text() + Path(f"{file}.crt").read_text())
    return file


class Canary:
    """Listens and never answers; whoever connects is counted."""

    def __init__(self) -> None:
        self._listening = [socket.create_server((CANARIES[0], 0), backlog=100)]
        self.port = int(self._listening[0].getsockname()[1])
        with suppress(OSError):  # a machine without IPv6
            address = (CANARIES[1], self.port)
            self._listening.append(
                socket.create_server(address, family=socket.AF_INET6, backlog=100)
            )
        for one in self._listening:
            one.setblocking(False)

    def connections(self) -> int:
        """Since it was last asked."""
        found = 0
        for one in self._listening:
            with suppress(BlockingIOError):
                while True:
                    one.accept()[0].close()
                    found += 1
        return found

    def close(self) -> None:
        for one in self._listening:
            one.close()


class Site(ThreadingHTTPServer):
    """Answers a path with what is in `pages`, and keeps the heads of all requests."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, pem: Path) -> None:
        super().__init__((SITE, 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.begin({})

    def begin(self, pages: dict[str, Page]) -> None:
        """As if nothing had been before."""
        self.pages = pages
        self.heads: list[dict[str, str]] = []
        self.ending = threading.Event()

    def connections(self) -> int:
        """Of this process to the site."""
        found = psutil.Process().net_connections("tcp")
        return sum(bool(one.raddr) and one.raddr[1] == self.server_port for one in found)

    async def closed(self, seconds: float = 5.0) -> bool:
        """Whether within this time no connection is left."""
        with suppress(AssertionError):
            return await until_async(lambda: not self.connections(), seconds)
        return False

    async def hang_up(self) -> None:
        """End the answers that never end; a loop must not be closed before its connections are."""
        self.ending.set()
        assert await self.closed()

    def handle_error(self, request: Any, address: Any) -> None:
        """Callers hang up; that is what some tests are about."""


class Page:
    """Args:
    status, body, headers: of the answer.
    after: seconds until it begins; None for never.
    drips: whether its body never ends, a byte at a time.
    """

    def __init__(
        self,
        body: bytes = b"",
        status: int = 200,
        headers: dict[str, str] | None = None,
        *,
        after: float | None = 0.0,
        drips: bool = False,
    ) -> None:
        self.body, self.status, self.headers = body, status, headers or {}
        self.after, self.drips = after, drips


def redirect(where: str, status: int = 302, after: float = 0.0) -> Page:
    location = where.encode().decode("latin-1")  # headers go out as such
    return Page(b"", status, {"Location": location, "Set-Cookie": "a=b; Secure"}, after=after)


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site, ending = self.server, self.server.ending
        site.heads.append({name.lower(): value for name, value in self.headers.items()})
        page = site.pages.get(self.path, Page(b"not here", 404))
        if ending.wait(page.after):
            return
        self.send_response(page.status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        if not page.drips and "Content-Length" not in page.headers:
            self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        self.wfile.write(page.body)
        while page.drips and not ending.wait(DRIP_SECONDS):
            self.wfile.write(b"x")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Not to standard error."""


@contextmanager
def running(site: Site) -> Iterator[Site]:
    thread = threading.Thread(target=site.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield site
    finally:
        site.ending.set()
        site.shutdown()
        thread.join()
        site.server_close()


class Names:
    """Resolves names as it is told, each time to the next answer; the last one stays. What it is
    not told of is at the canaries."""

    def __init__(self, **told: list[list[str]]) -> None:
        self._told = {name.replace("_", "."): list(answers) for name, answers in told.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self._told.get(host, [list(CANARIES)])
        return answers.pop(0) if len(answers) > 1 else answers[0]


async def fetched(
    url: str, hosts: list[str], names: Names | None = None, max_bytes: int = 1_000_000
) -> bytes:
    """Of a fetcher of its own, for which images.test is the site."""
    resolver = names or Names(images_test=[[SITE]])
    async with Fetcher(hosts=hosts, max_bytes=max_bytes, resolver=resolver) as fetcher:
        return await fetcher.fetch(url, Allowance(max_bytes))
