"""The page of the service, and the files that it loads. `make studio` builds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.core.model_schemas import Alive
from service.http.access import flat, needs
from service.http.adapter import Added, AppParts
from service.http.contract import answers
from service.http.responses import list_of, matches

BUILT: Final = Path(__file__).parent / "built"
MEDIA_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".jpg": "image/jpeg",
}
POLICY: Final = (
    "default-src 'none'; connect-src 'self' blob:; img-src 'self' data: blob:; style-src 'self'; "
    "script-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""No script or style in the page itself, and nothing from other hosts."""
ADDRESS: Final = "/studio/"
FILES: Final = tuple(sorted(file.name for file in BUILT.iterdir()))
ADDRESSES: Final = f"{ADDRESS}addresses.json"
PATHS: Final = ("/", ADDRESSES, *(f"{ADDRESS}{name}" for name in FILES))
"""Paths of the page. They need no key: the page asks for one and sends it with what it asks."""


def studio(parts: AppParts) -> Added:
    """Add the page and its files."""
    router, page = APIRouter(), answers(Alive, forms={"text/html": "<!doctype html>…"})
    router.get(
        "/",
        tags=["operations"],
        summary="The page for looking into a model",
        description="Clients that do not ask for `text/html`, like KServe's, get a JSON status.",
        response_model=Alive,
        responses=page,
    )(show_page)
    router.get(ADDRESSES, include_in_schema=False)(list_addresses)
    for name in FILES:
        router.get(f"{ADDRESS}{name}", include_in_schema=False)(_sender(name))
    return Added([router])


@needs("open")
async def show_page(request: Request) -> Response:
    if "text/html" not in request.headers.get("accept", ""):
        return JSONResponse(Alive(status="alive").model_dump(), headers={"Vary": "Accept"})
    return _file("index.html", request)


@needs("open")
async def list_addresses(request: Request) -> Response:
    """Answer the addresses of the contract, so that the page does not offer what a service lacks.
    The whole contract takes a third of a second to make, and half a megabyte."""
    routes = (each for each in flat(request.app.routes) if isinstance(each, APIRoute))
    paths = sorted({route.path_format for route in routes if route.include_in_schema})
    return _answer(json.dumps(paths).encode(), "application/json", request)


def _sender(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of one file."""

    @needs("open")
    async def get_file(request: Request) -> Response:
        return _file(name, request)

    return get_file


def _file(name: str, request: Request) -> Response:
    content = (BUILT / name).read_bytes()  # a few kilobytes, in the system's cache
    return _answer(content, MEDIA_TYPES[Path(name).suffix], request)


def _answer(content: bytes, media_type: str, request: Request) -> Response:
    """Return a file; 304 without it if the caller has it already."""
    tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    # A new version of the service has other files under the same names.
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Vary": "Accept"}
    if media_type == MEDIA_TYPES[".html"]:
        headers["Content-Security-Policy"] = POLICY
    if matches(list_of(request, "if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)
