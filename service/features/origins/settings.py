"""The settings of the hosts and the web pages through which requests may come."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from service.core.settings import CoreSettings, Names


def _origins(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check that origins have the form that browsers send; any other form would never match."""
    for origin in given:
        if origin != "*" and not re.fullmatch(r"https?://[^/?#@\s]+", origin):
            raise PydanticCustomError(
                "origin", "an origin is like https://app.example, without a path; or * for all"
            )
    return given


def _hosts(given: tuple[str, ...]) -> tuple[str, ...]:
    """Check that hosts have the form of a name in `Host`; any other form would never match."""
    for host in given:
        if host != "*" and not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", host):
            raise PydanticCustomError(
                "host", "a host is like app.example or *.app.example, without a port; or * for all"
            )
    return tuple(host.lower() for host in given)


class OriginSettings(CoreSettings):
    """Under which names the service answers, and which pages may call it."""

    cors_origins: Annotated[Names, AfterValidator(_origins)] = Field(
        (), description="web origins whose pages may call the service, separated by commas"
    )
    hosts: Annotated[Names, AfterValidator(_hosts)] = Field(
        (),
        description="names by which the service may be reached, such as `app.example` or "
        "`*.app.example`, in addition to localhost and literal addresses; `*`: all. Without this "
        "setting, a service with keys may be reached by every name",
    )
