"""A server on loopback that answers as a test says, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.waiting import until

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Asked:
    """A request that came in, whole."""

    method: str
    path: str
    raw_path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    chunks: Iterable[bytes] | None = None
    """Instead of a body: sent one by one, in chunked encoding."""
    cut: int | None = None
    """After so many bytes of the body, or chunks, the connection is closed."""
    reset: bool = False
    """Instead of an answer."""


def in_json(document: object, status: int = 200, **headers: str) -> Reply:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, {**JSON, **names}, json.dumps(document).encode())


def problem(status: int, detail: str, **headers: str) -> Reply:
    document = {
        "type": "urn:gradcam-service:test",
        "title": "A test",
        "status": status,
        "detail": detail,
        "error": detail,
    }
    reply = in_json(document, status, **headers)
    return Reply(status, {**reply.headers, "Content-Type": "application/problem+json"}, reply.body)


class Script:
    """What a server was asked, and how much at once."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        self.answer = answer
        self.asked: list[Asked] = []
        self.errors: list[BaseException | None] = []
        self.busy = self.busiest = self.replied = self.connections = 0
        self.address = ""
        self._lock = threading.Lock()

    def add(self, **changes: int) -> None:
        with self._lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)
            self.busiest = max(self.busiest, self.busy)

    def until_unconnected(self) -> None:
        until(lambda: not self.connections, 10)


@contextmanager
def scripted(answer: Callable[[Asked], Reply]) -> Iterator[Script]:
    script = Script(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 20

        def setup(self) -> None:
            script.add(connections=1)
            super().setup()

        def finish(self) -> None:
            with suppress(OSError):  # the caller may have left
                super().finish()
            script.add(connections=-1)

        def handle(self) -> None:
            with suppress(OSError):
                super().handle()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            asked = Asked(
                self.command,
                unquote(parts.path),
                parts.path,
                parse_qs(parts.query, keep_blank_values=True),
                {name.lower(): value for name, value in self.headers.items()},
                self._body(),
            )
            script.asked.append(asked)
            script.add(busy=1)
            try:
                reply = script.answer(asked)
            finally:
                script.add(busy=-1)
            self._reply(reply)
            script.add(replied=1)

        do_GET = do_POST = do_DELETE = _answer  # noqa: N815 - as http.server names them

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline() or self._gone(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _gone(self) -> bytes:
            raise ConnectionAbortedError("the caller left in the midst of a body")

        def _reply(self, reply: Reply) -> None:
            if reply.reset:
                linger = struct.pack("ii", 1, 0)
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.close_connection = True
                # What makefile() holds would keep the socket open.
                self.rfile.close()
                self.connection.close()
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            if reply.chunks is None:
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body[: reply.cut])
                self.close_connection = reply.cut is not None or self.close_connection
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for turn, chunk in enumerate(reply.chunks):
                if turn == reply.cut:
                    self.close_connection = True
                    return
                self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            script.errors.append(sys.exc_info()[1])

    server = Server(("127.0.0.1", 0), Handler)
    script.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert not script.errors, script.errors
