"""Who sends a request, by the API key in its headers, as it is added to the app."""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from starlette.datastructures import Headers

from service.core.errors import RateLimited, Unauthorized
from service.features.keys.keys import ApiKey, Keys, keys_of_restart
from service.features.keys.rates import Rates
from service.features.keys.settings import KeySettings
from service.http.access import Caller
from service.http.adapter import Added, AppParts
from service.http.guard import Guard

SEND_ONE: Final = "send an API key: Authorization: Bearer KEY, or X-API-Key: KEY"
SCHEMES: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "basic": {"type": "http", "scheme": "basic", "description": "For browsers: as the password."},
}
"""The ways to send a key, as OpenAPI describes them."""


def keys(parts: AppParts) -> Added:
    """Know callers by their keys where the settings name a file of keys, which is followed."""
    file = parts.settings_of(KeySettings).keys
    if file is None:
        return Added(security_schemes=SCHEMES)
    known = keys_of_restart(file)

    @asynccontextmanager
    async def followed(guard: Guard) -> AsyncIterator[None]:
        task = asyncio.create_task(known.follow(file), name="keys")
        try:
            yield
        finally:
            task.cancel()

    identified = partial(identify, known, Rates(parts.shared))
    return Added(identify=identified, running=followed, security_schemes=SCHEMES)


def identify(keys: Keys, rates: Rates, headers: Headers) -> Caller:
    """Return the caller whose key a request carries.

    Raises:
        Unauthorized: if it carries none, or one that is unknown or has expired.
    """
    sent = presented(headers)
    if key := keys.of(sent):
        return Caller(key.name, key.scopes, partial(_count, key, rates))
    if sent:
        raise Unauthorized(f"the API key that was sent is not known; {SEND_ONE}")
    raise Unauthorized(SEND_ONE)


def _count(key: ApiKey, rates: Rates) -> None:
    wait = rates.hit(key.rate, key.name) if key.rate else None
    if wait is not None:
        raise RateLimited(
            f"the key {key.name!r} may make {key.rate}; try again later",
            retry_after=math.ceil(wait),
        )


def presented(headers: Headers) -> str:
    """Return the key that a request carries, or "" if it carries none."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return value.strip()
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except ValueError:  # the value is not base64 of UTF-8
            return ""
    return headers.get("x-api-key", "")
