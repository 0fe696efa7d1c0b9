"""Objects that other packages add, by a group of entry points."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import entry_points
from typing import Final, Protocol, TypeVar

NAME: Final = re.compile(r"[a-z][a-z0-9+_-]{0,63}")
"""What the name of an addition must look like: requests, files and metrics have it."""


class Extension(Protocol):
    """What can be added."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Extension)


def added(
    group: str,
    kind: type[N],
    where: str,
    taken: Collection[str],
    problem: Callable[[N], str | None] = lambda one: None,
) -> Iterator[N]:
    """Yield what the entry points of a group name; what cannot be used is told by a warning.

    Args:
        kind: the class of what is added, and
        where: the module from which packages import it.
        taken: names that an addition cannot have.
        problem: returns why an addition cannot be used, or None.
    """
    names = set(taken)
    for entry in sorted(entry_points(group=group)):
        try:
            one = entry.load()
        except Exception as error:  # it is another package's code
            _leave_out(kind, entry.value, f"{type(error).__name__}: {error}")
            continue
        if not isinstance(one, kind):
            why: str | None = f"it is a {type(one).__name__}, not a {where}.{kind.__name__}"
        elif not NAME.fullmatch(one.name):
            why = f"its name {one.name!r:.80} does not match {NAME.pattern}"
        elif one.name in names:
            why = f"the name {one.name!r} is taken"
        else:
            why = problem(one)
        if why:
            _leave_out(kind, entry.value, why)
        else:
            names.add(one.name)
            yield one


def _leave_out(kind: type[Extension], what: str, why: str) -> None:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
    message = f"the {words} {what} is left out: {why}"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
