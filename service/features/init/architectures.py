"""Which architectures of torchvision and timm have the tensors of a state dict."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Final

from service.features.init.index import likeness, made, sketch, sketches, sources
from service.loading.weights import Head, State, WeightsError, compared

SEARCH_SECONDS: Final = 30.0
"""Time after which no further architecture is made."""
ALIKE: Final = 0.5
"""Least likeness of an architecture that is compared with the state dict."""
NEAR: Final = 3
"""Number of architectures that are compared in any case, to name the nearest one."""
WORTH_NAMING: Final = 0.4
"""Least likeness of the nearest architecture to be named."""


@dataclass(frozen=True)
class Match:
    """An architecture with the tensors of a state dict, but for the number of classes."""

    source: str
    """The entry's source, such as `timm:resnet18`."""
    head: Head | None
    """The last layer, if the state dict has it in another place."""
    left_out: tuple[str, ...] = ()
    """Names of tensors beside the architecture's."""


@dataclass(frozen=True)
class SearchResult:
    """What was found."""

    matches: tuple[Match, ...]
    nearest: str | None
    """Source of the architecture that is the most like the state dict, if none has its tensors."""
    why: str
    """What of the nearest architecture does not fit."""
    is_complete: bool
    """Whether the time was enough."""


def search(state: State, seconds: float = SEARCH_SECONDS) -> SearchResult:
    """Return the architectures of torchvision and timm that have the tensors of a state dict: their
    names, after the prefixes of training, and shapes, but for the number of classes."""
    until = monotonic() + seconds
    own, known = sketch(state), sketches()
    ranked = sorted(((likeness(own, each), source) for source, each in known.items()), reverse=True)
    # What the index does not know is newer than it.
    newer = [(ALIKE, source) for source in sources() if source not in known]
    matches: list[Match] = []
    reasons: list[tuple[float, str, str]] = []
    is_complete = True
    for number, (alike, source) in enumerate([*ranked, *newer]):
        if alike < ALIKE and number >= NEAR:
            continue
        if monotonic() > until:
            is_complete = False
            break
        if (module := made(source)) is None:
            continue
        try:
            fitting = compared(module, state)
            matches.append(Match(source, fitting.head, fitting.left_out))
        except WeightsError as error:
            reasons.append((likeness(own, sketch(module.state_dict())), source, str(error)))
    best, nearest, why = max(reasons, default=(0.0, "", ""))
    if matches or best < WORTH_NAMING:
        return SearchResult(tuple(matches), None, "", is_complete)
    return SearchResult((), nearest, why, is_complete)
