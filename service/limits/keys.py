"""API keys with their scopes and rates; only the digests of keys are stored."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from limits import RateLimitItem, parse, parse_many
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from service.core.errors import ConfigError
from service.core.pydantic_errors import mistake

Scope = Literal["explain", "admin"]
PREFIX = "gradcam_"
DIGEST = "sha256:"


PATTERNS = {
    "name": "it should begin with a letter or a digit and have at most 64 letters, digits, '.', "
    "'_' and '-'",
    "digest": "it should be sha256: and 64 hexadecimal digits",
}
"""Field that has a pattern → a description of what the pattern allows."""


class KeyEntry(BaseModel):
    """One `[[keys]]` entry of the file of keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    scopes: Annotated[tuple[Scope, ...], Field(min_length=1)] = ("explain",)
    rate: str | None = None

    @field_validator("rate")
    @classmethod
    def _is_a_rate(cls, rate: str | None) -> str | None:
        try:
            if rate is not None and len(parse_many(rate)) != 1:
                raise ValueError
        except ValueError:
            raise ValueError("it should be one rate, like 600/minute") from None
        return rate


@dataclass(frozen=True)
class ApiKey:
    """The key of one caller."""

    name: str
    digest: bytes
    scopes: frozenset[Scope]
    rate: RateLimitItem | None


class Keys:
    """The keys of one file."""

    def __init__(self, keys: list[ApiKey]) -> None:
        self._keys = keys

    def of(self, presented: str) -> ApiKey | None:
        """Return the key that a caller presents, or None if it is unknown. Every digest is compared
        in constant time, so that the time taken reveals nothing."""
        if not presented:
            return None
        digest = hashlib.sha256(presented.encode()).digest()
        match = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                match = key
        return match


def read_keys(file: Path) -> Keys:
    """Read a TOML file of keys.

    Raises:
        ConfigError: if the file has a mistake; it names the file, the entry and what is allowed.
    """
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: is not TOML: {error}") from None
    tables = document.get("keys")
    if not isinstance(tables, list) or not tables or document.keys() - {"keys"}:
        raise ConfigError(f"{file}: holds [[keys]] entries, at least one, and nothing else")
    keys: list[ApiKey] = []
    for number, table in enumerate(tables, start=1):
        try:
            entry = KeyEntry.model_validate(table)
        except ValidationError as error:
            raise ConfigError(
                f"{file}: entry {number}: {_sentence(error)}; `gradcam key NAME` writes an entry"
            ) from None
        if entry.name in (key.name for key in keys):
            raise ConfigError(f"{file}: entry {number}: the name {entry.name!r} is taken")
        keys.append(
            ApiKey(
                entry.name,
                bytes.fromhex(entry.digest.removeprefix(DIGEST)),
                frozenset(entry.scopes),
                parse(entry.rate) if entry.rate else None,
            )
        )
    return Keys(keys)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "the entry"
    if first["type"] == "extra_forbidden":
        return f"there is no {where}; an entry has {', '.join(KeyEntry.model_fields)}"
    if first["type"] == "missing":
        return f"{where} is required"
    message = mistake(first)
    if first["type"] == "string_pattern_mismatch":
        message = PATTERNS.get(where, message)
    return f"{where} is {str(first['input'])[:80]!r}: {message}"


def new_key(name: str, scopes: Sequence[str], rate: str | None) -> tuple[str, str]:
    """Return a new key of 256 random bits, and the TOML entry that admits it.

    Raises:
        ConfigError: if the name, the scopes or the rate are not allowed.
    """
    key = PREFIX + secrets.token_urlsafe(32)
    digest = DIGEST + hashlib.sha256(key.encode()).hexdigest()
    try:
        entry = KeyEntry(name=name, digest=digest, scopes=tuple(scopes), rate=rate)
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None
    lines = [
        "[[keys]]",
        f'name = "{entry.name}"',
        f'digest = "{entry.digest}"',
        f"scopes = [{', '.join(chr(34) + scope + chr(34) for scope in entry.scopes)}]",
    ]
    if rate:
        lines.append(f'rate = "{rate}"')
    return key, "\n".join(lines) + "\n"
