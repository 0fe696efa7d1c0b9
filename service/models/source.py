"""What the service knows of a kind of source without building a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cam.methods.method import Function

NAMED: Final = "[A-Za-z0-9._-]+"
PLACE: Final = r"[^\x00-\x1f]+"


@dataclass(frozen=True, kw_only=True)
class Source:
    """One kind of source. An entry names it as `NAME:WHAT`."""

    name: str
    what: str = NAMED
    """Regular expression of what follows the colon."""
    told: str
    """What may be written, for people, in the middle of a sentence."""
    build: Function
    """Takes the entry (`service.models.catalog.ModelEntry`), what follows the colon, and the number
    of classes of the head, None for the source's own; returns a `service.loading.sources.Built`.
    What it raises about the entry is made by `entry.mistake`."""
    check: Function
    """Takes the entry and what follows the colon, and finds the model without building it, or
    raises the mistake."""
    library: str | None = None
    """Package that takes seconds to import, and makes the models."""
    answering: Function | None = None
    """Takes the entry and what follows the colon; returns a `service.loading.sources.Answering` if
    the model answers questions, and None if it has classes. Without it, no model does."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions decide what the models do."""
    takes_prompts: bool = False
    """Whether an entry may name prompts, which are then the classes."""
    prompted: tuple[str, ...] = ()
    """What may follow the colon in an entry that names prompts, where other models take none."""
    own_weights: bool = False
    """Whether `weights` of an entry names weights of the source, and not a file."""
    anything: bool = False
    """Whether its models may return anything; those of libraries return scores of classes."""
    is_code: bool = False
    """Whether it names the operator's own code. Its head is as the code makes it, what was found
    out about a model is not kept for the next start, and a folder with a model may not name it."""
    is_graph: bool = False
    """Whether it names the file of a network, which runs in float32 on the CPU."""
    runtime: str = "torch"
    """What runs its models, if no path is faster."""
