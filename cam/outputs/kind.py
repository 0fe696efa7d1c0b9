"""The `OutputKind` class: the description of one kind of output beside logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from cam.outputs import KINDS

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

    from cam.outputs.output import Detections, Output
    from cam.outputs.reading import Reading


@dataclass(frozen=True)
class OutputKind:
    """How one kind of output is read, and what depends on the kind."""

    read: Callable[
        [Any, tuple[int, int] | None, Reading, nn.Module | None], Mapping[str, Any] | None
    ]
    """Converts a model's output. It takes the output, the height and width of the input, the
    reading and the model. It returns the fields of `cam.outputs.outputs.Outputs` that it found, or
    None if the output is not of this kind."""
    declare: Callable[..., RemovableHandle]
    """Makes a module return its output in a stated form. It takes the module, the form and the
    options of the kind."""
    unfiltered: Callable[[nn.Module], AbstractContextManager[None]]
    """Makes a module return all that it finds, whatever the scores, in a `with` block."""
    resolve: Callable[[Any, Output], Any]
    """Fills in a `cam.targets.ClassTarget` from an image's output: see `ClassTarget.resolve`."""
    find: Callable[[Any, Detections], int | None]
    """Returns the index of the detection that a resolved `ClassTarget` is about, or None: see
    `ClassTarget.find`."""
    with_levels: Callable[[nn.Module, Tensor, list[Any], Reading], list[Any]]
    """Sets `level` and `common` of a model's `cam.layers.Layer`s."""
    choosing: frozenset[str]
    """Operations by which models choose and combine the scores that their last layers return, by
    their autograd names."""
    reason: str
    """Why the scores are probabilities, as half a sentence."""


@cache
def kinds() -> dict[str, OutputKind]:
    """Return the kinds in `KINDS` by their names."""
    return {name: resolve_name(place) for name, place in KINDS.items()}


@contextmanager
def unfiltered(model: nn.Module) -> Iterator[None]:
    """Make a model return all that it finds, whatever the scores, to find the layers behind it."""
    with ExitStack() as scope:
        for kind in kinds().values():
            scope.enter_context(kind.unfiltered(model))
        yield
