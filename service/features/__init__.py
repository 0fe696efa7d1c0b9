"""What the service does: a feature is a folder here, and stands in `FEATURES`.

An operation is what a model does with images: from it come the route, what it requires of a caller,
and what `openapi/openapi.json` says. An adapter adds to the app: routes of other resources, such as
jobs, or another way in, such as a platform's contract. Nothing below this package knows of a
feature. What a feature gives is named and not imported, so that the command line and the client
import no feature that they do not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from service.backend.journal import Journal
    from service.backend.watch import MakeWatch
    from service.http.adapter import Adapter
    from service.http.operation import Operation


@dataclass(frozen=True)
class Feature:
    """A folder, and what it gives the service. A place in the folder is written "module:name"."""

    folder: str
    needs: tuple[str, ...] = ()
    """Folders of the features that it imports. It imports no other one."""
    operations: tuple[str, ...] = ()
    """Places of what the models do with images."""
    adapters: tuple[str, ...] = ()
    """Places of what is added to the app."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Name of a command of `gradcam` → the place of its function, or of the operation whose answers
    it prints."""
    work: tuple[str, ...] = ()
    """Places of what it alone asks of a model. The process of the models imports them."""
    journals: tuple[str, ...] = ()
    """Places of what keeps the added and the removed models, in a folder that outlives a
    process."""
    watches: tuple[str, ...] = ()
    """Places of what makes those who are told the answers to live traffic, one for each model."""
    around: tuple[str, ...] = ()
    """Places of functions that, given the settings, return what is entered around the work of each
    process."""
    supervised: tuple[str, ...] = ()
    """Places of functions that, given the settings, return a port that the supervisor opens, and
    what answers there; or None."""
    extends: Mapping[str, str] = field(default_factory=dict)
    """Folder of another feature → the place of what this one adds to it."""

    def whole(self, place: str) -> str:
        """Return a place in the folder as one that does not depend on the folder."""
        return f"{__name__}.{self.folder}.{place}"


FEATURES: Final[tuple[Feature, ...]] = (
    Feature(
        "predict",
        operations=("operation:PREDICT",),
        commands={"predict": "operation:PREDICT"},
    ),
    Feature("explain", operations=("operation:EXPLAIN",), commands={"explain": "command:command"}),
    Feature(
        "evaluate",
        needs=("explain",),
        operations=("operation:EVALUATE",),
        commands={"evaluate": "operation:EVALUATE"},
    ),
    Feature(
        "activations",
        operations=("operation:ACTIVATIONS",),
        commands={"activations": "operation:ACTIVATIONS"},
        work=("work:Observe", "work:Factorise"),
    ),
    Feature(
        "answers",
        operations=("operation:ANSWER",),
        commands={"answer": "command:command"},
        work=("work:AnswerQuestion",),
    ),
    Feature("tables"),
    Feature("report", needs=("tables",)),
    Feature("batch", needs=("report", "tables"), commands={"batch": "command:command"}),
    Feature("keys", adapters=("adapter:keys",), commands={"key": "command:command"}),
    Feature("origins", adapters=("adapter:origins",)),
    Feature("remote_images", adapters=("adapter:remote_images",)),
    Feature("studio", adapters=("routes:studio",)),
    Feature("jobs", needs=("report", "tables"), adapters=("adapter:jobs",)),
    Feature(
        "audit",
        needs=("answers", "batch", "jobs", "report"),
        commands={"audit": "command:command"},
        work=("work:Randomise",),
        extends={"jobs": "kind:audits"},
    ),
    Feature(
        "open_inference",
        needs=("administration", "answers"),
        adapters=("adapter:v2",),
    ),
    Feature(
        "platforms",
        needs=("administration",),
        adapters=(
            "adapters:addresses",
            "adapters:sagemaker",
            "adapters:vertex",
            "adapters:kserve",
        ),
    ),
    Feature("forwarded", adapters=("adapter:forwarded",)),
    Feature(
        "administration",
        adapters=("routes:administration",),
        journals=("journal:FileJournal",),
    ),
    Feature(
        "drift",
        needs=("batch",),
        adapters=("routes:drift",),
        commands={"reference": "command:command"},
        work=("work:CompareDrift",),
        watches=("watch:watch_of",),
    ),
    Feature("init", needs=("batch",), commands={"init": "command:command"}),
    Feature("export", commands={"export": "command:command"}),
    Feature("compile", commands={"compile": "command:command"}),
    Feature("traces", around=("export:opened",)),
    Feature("probes", supervised=("server:asked",)),
    Feature("ray"),
)
"""All features. Their operations and commands are told in this order. Where two adapters know a
path, the later one has it."""

COMMANDS: Final = {
    name: feature.whole(place) for feature in FEATURES for name, place in feature.commands.items()
}
"""Name of a command → the place of its function or operation."""


def given(kind: str) -> list[Any]:
    """Import and return what the features give of a kind, which is the name of a tuple of places in
    `Feature`."""
    return [
        resolve_name(feature.whole(place))
        for feature in FEATURES
        for place in getattr(feature, kind)
    ]


def additions(folder: str) -> list[Any]:
    """Import and return what other features add to the one of this folder."""
    return [
        resolve_name(feature.whole(feature.extends[folder]))
        for feature in FEATURES
        if folder in feature.extends
    ]


def operations() -> tuple[Operation[Any, Any], ...]:
    """Return what the models do with images."""
    return tuple(given("operations"))


def adapters() -> tuple[Adapter, ...]:
    """Return what is added to the app."""
    return tuple(given("adapters"))


def journals() -> list[Callable[[Path], Journal]]:
    """Return what keeps the added and the removed models."""
    return given("journals")


def watches() -> list[MakeWatch]:
    """Return what makes those who are told the answers to live traffic."""
    return given("watches")
