"""Where models come from: the service's own sources, which `service.sources` lists, and those that
packages add: each entry point of the group `gradcam.sources` is a `Source`.

Nothing here needs torch: functions are named by their places and imported when a model is built.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Final

from cam.extensions import added
from service.models.source import Source as Source  # packages import it from here

GROUP: Final = "gradcam.sources"
"""The group of entry points whose objects are further sources."""
OWN: Final = "service.sources"
"""The package that lists the service's own sources. It stands above the core, which reads the list
and imports no source."""


def _problem(source: Source) -> str | None:
    try:
        re.compile(source.what)
    except re.error as error:
        return f"its `what` is not a regular expression: {error}"
    return None


_OWN: Final = {source.name: source for source in import_module(OWN).OWN}
SOURCES: Final = _OWN | {
    source.name: source for source in added(GROUP, Source, __name__, _OWN, _problem)
}
"""Name of a kind of source → the source."""


def source_of(text: str) -> tuple[Source, str]:
    """Return the source that an entry names, and what follows the colon."""
    name, _, what = text.partition(":")
    return SOURCES[name], what


def told_of(*, graphs: bool) -> str:
    """Return what may be written as a source, for people.

    Args:
        graphs: whether networks in files are among them.
    """
    *first, last = (each.told for each in SOURCES.values() if graphs or not each.is_graph)
    return f"{', '.join(first)}, or {last}"


PATTERN: Final = "|".join(f"^{re.escape(name)}:{source.what}$" for name, source in SOURCES.items())
