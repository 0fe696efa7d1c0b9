"""Conversion of an address and an API key into settings of httpx2's clients."""

from __future__ import annotations

from typing import Any

import httpx2

from service import __version__


def settings(address: str, key: str | None) -> dict[str, Any]:
    """Return the settings of an httpx2 client. Redirects are not followed, so that the key is not
    sent to another host.

    Raises:
        ValueError: if the address or the key is invalid.
    """
    url = _url(address)
    headers = {"User-Agent": f"gradcam-service/{__version__}"}
    if key is not None:
        headers["Authorization"] = f"Bearer {_sound(key)}"
    # The password is kept out of the address, which appears in errors and logs.
    auth = (url.username, url.password) if url.userinfo else None
    bare = url.copy_with(username=None, password=None)
    return {"base_url": bare, "headers": headers, "auth": auth}


def _url(address: str) -> httpx2.URL:
    if not address.lower().startswith(("http://", "https://")):
        raise ValueError(f"{_told(address)}; it should start with http:// or https://")
    try:
        url = httpx2.URL(address)
    except httpx2.InvalidURL as error:
        # The error's own message may contain a part of the password.
        why = "a name and a password in it need %-escapes" if "@" in address else error
        raise ValueError(f"{_told(address)}: {why}") from None
    if "?" in address or "#" in address:
        raise ValueError(f"{_told(address)}; it should have no query and no fragment")
    if not (_is_a_host(url.raw_host) and (url.port is None or 0 < url.port < 1 << 16)):
        raise ValueError(f"{_told(address)}; it should name a host, and a port up to 65535")
    return url


def _is_a_host(name: bytes) -> bool:
    try:
        return bool(name.decode("ascii").encode("idna"))  # sockets encode names in this way
    except UnicodeError:
        return False


def _told(address: str) -> str:
    """Return the start of an error message that quotes the address without user name and password,
    even if the address is invalid."""
    scheme, mark, _ = address.partition("://")
    start = scheme + mark if mark and scheme.isalpha() else ""
    return f"the address is {start + address.removeprefix(start).rpartition('@')[2]!r}"


def _sound(key: str) -> str:
    """Return a key without surrounding whitespace, such as the line break at the end of a file.

    Raises:
        ValueError: if the key cannot be sent in a header. The message does not contain the key.
    """
    key = key.strip()
    if not key:
        raise ValueError("the key is empty; leave it out, or give one")
    if not (key.isascii() and key.isprintable()):
        raise ValueError("the key has characters other than printable ASCII")
    return key
