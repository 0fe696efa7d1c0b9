"""An address and a key, as httpx2's clients take them."""

from __future__ import annotations

from typing import Any

import httpx2

from service import __version__


def settings(address: str, key: str | None) -> dict[str, Any]:
    """Of httpx2's clients. Redirects are not followed: the key goes nowhere else.

    Raises:
        ValueError: if the address is none.
    """
    if not address.lower().startswith(("http://", "https://")):
        raise ValueError(f"the address is {address!r}; it should start with http:// or https://")
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        raise ValueError(f"the address is {address!r}: {error}") from None
    headers = {"User-Agent": f"gradcam-service/{__version__}"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    return {"base_url": url, "headers": headers}
