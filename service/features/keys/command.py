"""The command `gradcam key`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from service.features.keys.keys import new_key


def command(
    name: Annotated[str, typer.Argument(help="Name of the key's owner.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="explain or admin; repeat for both.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Like 600/minute.")] = None,
    expires: Annotated[
        str | None, typer.Option(help="When the key ends: 90d, 2027-01-31, or a time with offset.")
    ] = None,
) -> None:
    """Make an API key: prints its entry for the file of keys, and, once, the key itself."""
    secret, entry = new_key(name, scope or ["explain"], rate, expires)
    print(entry)
    print(f"# The key, shown this once: {secret}", file=sys.stderr)
