"""A model that is tried on one image, to find out which methods it suits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn

from cam.hooks.grids import Grid
from cam.outputs.output import Output
from cam.outputs.reading import Reading

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Trial:
    """What a method's `unsuited` sees of a model: see `cam.methods.method.Method`."""

    model: nn.Module
    image: Tensor
    """(1, C, H, W)."""
    layer: str | None
    """The layer that is explained by default, if there is one."""
    grid: Grid | None
    """Where the positions lie in the output of `layer`."""
    reading: Reading
    output: Output
    """What the model returns for the image."""
    stop: str | None
    """Why no gradient passes through a part of the model; None if it does."""
    _found: dict[Callable[..., Any], Any] = field(default_factory=dict)

    def once(self, check: Callable[[nn.Module, Tensor, Reading], T]) -> T:
        """Return what a check finds that several methods share; it is made once."""
        if check not in self._found:
            try:
                self._found[check] = check(self.model, self.image, self.reading)
            except Exception as error:
                self._found[check] = error
        found = self._found[check]
        if isinstance(found, Exception):
            raise found
        checked: T = found
        return checked
