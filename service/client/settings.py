"""An address and a key, as httpx2's clients take them."""

from __future__ import annotations

from typing import Any

import httpx2

from service import __version__


def settings(address: str, key: str | None) -> dict[str, Any]:
    """Of httpx2's clients. Redirects are not followed: the key goes nowhere else.

    Raises:
        ValueError: if the address or the key is none.
    """
    if not address.lower().startswith(("http://", "https://")):
        raise ValueError(f"the address is {address!r}; it should start with http:// or https://")
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise ValueError(f"the address is {address!r}: {error}") from None
    headers = {"User-Agent": f"gradcam-service/{__version__}"}
    if key is not None:
        headers["Authorization"] = f"Bearer {_sound(key)}"
    return {"base_url": url, "headers": headers}


def _sound(key: str) -> str:
    """A key without the line's end that it has in a file.

    Raises:
        ValueError: if no header can have it; a sentence that does not tell the key.
    """
    key = key.strip()
    if not key:
        raise ValueError("the key is empty; leave it out, or give one")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("the key has characters other than printable ASCII")
    return key
