"""API keys with their scopes, rates and ends; only the digests of keys are stored."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import re
import secrets
import tomllib
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from service.core.errors import ConfigError, Unauthorized
from service.core.pydantic_errors import mistake
from service.features.keys.rates import Rate

Scope = Literal["explain", "admin"]
PREFIX = "gradcam_"
DIGEST = "sha256:"
LOOK_SECONDS: Final = 1.0
"""Time between two looks at the file. A changed file is read at the second look that finds it."""
log = logging.getLogger(__name__)

PATTERNS = {
    "name": "it should begin with a letter or a digit and have at most 64 letters, digits, '.', "
    "'_' and '-'",
    "digest": "it should be sha256: and 64 hexadecimal digits",
}
"""Field that has a pattern → a description of what the pattern allows."""


class ApiKey(BaseModel):
    """The key of one caller: a `[[keys]]` entry of the file of keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    scopes: Annotated[frozenset[Scope], Field(min_length=1)] = frozenset({"explain"})
    rate: Rate | None = None
    expires: datetime | None = None
    """From when on the key is unknown."""

    @field_validator("expires", mode="before")
    @classmethod
    def _is_a_time(cls, expires: Any) -> datetime | None:
        if type(expires) is date:  # its beginning in UTC
            return datetime.combine(expires, time.min, UTC)
        if expires is None or (isinstance(expires, datetime) and expires.tzinfo):
            return expires
        raise ValueError("it should be a date, or a time with an offset, like 2027-01-31T12:00:00Z")

    @field_validator("rate", mode="plain")
    @classmethod
    def _is_a_rate(cls, rate: Any) -> Rate | None:
        if rate is None or isinstance(rate, str):
            return None if rate is None else Rate.parsed(rate)
        raise ValueError("it should be text")


class Keys:
    """The keys of one file."""

    def __init__(self, keys: list[ApiKey]) -> None:
        self._keys = keys

    def of(self, presented: str) -> ApiKey | None:
        """Return the key that a caller presents, or None if it is unknown. Every digest is compared
        in constant time, so that the time taken reveals nothing.

        Raises:
            Unauthorized: if the key has expired.
        """
        if not presented:
            return None
        digest = digest_of(presented)
        match = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                match = key
        if match and match.expires and match.expires <= datetime.now(UTC):
            raise Unauthorized(
                f"the key {match.name!r} expired at {match.expires.isoformat()}; ask the operator "
                "of the service for another one"
            )
        return match

    async def follow(self, file: Path) -> NoReturn:
        """Read the file again whenever it has changed, until cancelled. A file that cannot be read,
        or has a mistake, changes nothing; each mistake is logged once.

        A file that has changed is read when it has been the same for `LOOK_SECONDS`, because
        somebody may still write it.
        """
        seen: object = None
        followed: object = ()
        mistake = ""
        while True:
            found = await asyncio.to_thread(_version, file)
            if found == seen != followed:
                try:
                    read = await asyncio.to_thread(read_keys, file)
                except ConfigError as error:
                    if str(error) != mistake:
                        log.error("%s; the keys stay as they were", error)
                    mistake = str(error)
                else:
                    if read._keys != self._keys:
                        log.info("%s: has changed, and holds %d keys", file, len(read._keys))
                    self._keys = read._keys
                    followed, mistake = found, ""
            seen = found
            await asyncio.sleep(LOOK_SECONDS)


def digest_of(key: str) -> str:
    """Return the digest of a key, as its entry has it."""
    return DIGEST + hashlib.sha256(key.encode()).hexdigest()


def keys_of_restart(file: Path) -> Keys:
    """Read a TOML file of keys for a process that may replace another one, whose service should not
    end because the file has a mistake now. The process then begins without a key, lets nobody in,
    and `Keys.follow` tells the mistake."""
    try:
        return read_keys(file)
    except ConfigError:
        return Keys([])


def _version(file: Path) -> tuple[int, ...] | None:
    """Return numbers that change with the file, or with the link that leads to it; None if it is
    not there."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def read_keys(file: Path) -> Keys:
    """Read a TOML file of keys.

    Raises:
        ConfigError: if the file has a mistake; it names the file, the entry and what is allowed.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    tables = document.get("keys")
    if not isinstance(tables, list) or not tables or document.keys() - {"keys"}:
        raise ConfigError(f"{file}: holds [[keys]] entries, at least one, and nothing else")
    keys: list[ApiKey] = []
    for number, table in enumerate(tables, start=1):
        try:
            key = ApiKey.model_validate(table)
        except ValidationError as error:
            raise ConfigError(
                f"{file}: entry {number}: {_sentence(error)}; `gradcam key NAME` writes an entry"
            ) from None
        if key.name in (other.name for other in keys):
            raise ConfigError(f"{file}: entry {number}: the name {key.name!r} is taken")
        keys.append(key)
    return Keys(keys)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the entry"
    if first["type"] == "extra_forbidden":
        return f"there is no {where}; an entry has {', '.join(ApiKey.model_fields)}"
    if first["type"] == "missing":
        return f"{where} is required"
    message = mistake(first)
    if first["type"] == "string_pattern_mismatch":
        message = PATTERNS.get(where, message)
    return f"{where} is {str(first['input'])[:80]!r}: {message}"


def new_key(
    name: str, scopes: Sequence[str], rate: str | None, expires: str | None = None
) -> tuple[str, str]:
    """Return a new key of 256 random bits, and the TOML entry that admits it.

    Args:
        expires: from when on it is unknown: a number of days such as `90d`, a date, or a time with
            an offset. None: never.

    Raises:
        ConfigError: if the name, the scopes, the rate or the end are not allowed.
    """
    end = None if expires is None else _end(expires)
    key = PREFIX + secrets.token_urlsafe(32)
    entry = {"name": name, "digest": digest_of(key), "scopes": tuple(scopes), "rate": rate}
    try:
        ApiKey.model_validate(entry)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None
    # What is allowed is written alike in JSON and in TOML, except times.
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in entry.items() if value]
    return key, "".join(["[[keys]]\n", *lines, f"expires = {end.isoformat()}\n" if end else ""])


def _end(given: str) -> datetime:
    """Return the end of a key that an operator has given.

    Raises:
        ConfigError: if it is not one, or not in the future.
    """
    try:
        if days := re.fullmatch(r"([0-9]{1,5})d", given):
            end = datetime.now(UTC).replace(microsecond=0) + timedelta(int(days[1]))
        elif re.fullmatch(r"[0-9-]{10}", given):
            end = datetime.combine(date.fromisoformat(given), time.min, UTC)
        else:
            end = datetime.fromisoformat(given)
        if end <= datetime.now(UTC):
            raise ConfigError(f"expires is {given!r}: it should be in the future")
        return end.astimezone(UTC)
    except (ValueError, OverflowError, TypeError):  # TypeError: a time without an offset
        raise ConfigError(
            f"expires is {given!r}: it should be days, like 90d, a date, like 2027-01-31, or a "
            "time with an offset, like 2027-01-31T12:00:00Z"
        ) from None
