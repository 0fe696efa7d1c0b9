"""Models that a function of the operator returns."""

from __future__ import annotations

from typing import Final

from service.models.source import Source

FACTORY: Final = Source(
    name="factory",
    what="[A-Za-z0-9_.]+:[A-Za-z0-9_]+",
    told="`factory:package.module:function`, your own function that returns a module",
    build=f"{__name__}.build:build",
    check=f"{__name__}.build:check",
    anything=True,
    is_code=True,
)
