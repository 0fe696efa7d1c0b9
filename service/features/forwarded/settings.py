"""The settings of a service behind proxies, and the form of a path that one removes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, IPvAnyNetwork
from pydantic_core import PydanticCustomError

from service.core.settings import SEPARATED, CoreSettings


def path_prefix(given: str) -> str | None:
    """Return a prefix of paths, such as `/team/xai`, without a slash at its end; "" for `/`. Return
    None if it is not a prefix: it has a character other than letters, digits, `-`, `.`, `_`, `~`
    and `/`, or a step that is empty or consists of dots."""
    prefix = given.removesuffix("/")
    allowed = re.fullmatch(r"(/(?!\.{1,2}(/|\Z))[A-Za-z0-9._~-]+)*", prefix) and len(given) <= 200
    return prefix if allowed else None


def _prefix(given: str) -> str:
    prefix = path_prefix(given)
    if prefix is None:
        raise PydanticCustomError("prefix", "a root path is like /team/xai")
    return prefix


class ForwardedSettings(CoreSettings):
    """Whom the service believes where it is published, and where it is without being told."""

    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], SEPARATED] = Field(
        (),
        description="addresses of proxies, such as `10.1.2.3` or `10.0.0.0/8`, whose "
        "`X-Forwarded-Host`, `-Proto` and `-Prefix` are believed",
    )
    root_path: Annotated[str, AfterValidator(_prefix)] = Field(
        "",
        description="path below which a proxy publishes the service and which it removes from "
        "requests, such as `/team/xai`",
    )
