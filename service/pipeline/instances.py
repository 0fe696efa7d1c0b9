"""One image of a request with its parameters, whatever the form of the request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.core.errors import Problem
from service.pipeline.parameters import ImageParameters

P = TypeVar("P", bound=ImageParameters)
P_co = TypeVar("P_co", bound=ImageParameters, covariant=True)


@dataclass(frozen=True)
class Remote:
    """An image that is still to be fetched from its address."""

    url: str


@dataclass(frozen=True)
class Instance(Generic[P_co]):
    """One image of a request, with its parameters."""

    index: int
    id: str | None
    image: bytes | Problem | Remote
    """Bytes as sent, the problem if they could not be read, or the address to fetch them from."""
    pointer: str
    """Pointer to the image in the request; see `Problem`."""
    parameters: P_co
    origins: Mapping[str, str] = field(default_factory=dict)
    """Parameter's name → pointer to it in the request, for parameters that the request gives."""

    @property
    def size(self) -> int:
        """Bytes of the image, 0 if there are none."""
        return len(self.image) if isinstance(self.image, bytes) else 0

    def blame(self, problem: Problem) -> Problem:
        """Return the problem with a pointer to the parameter that caused it, if one did."""
        where = self.origins.get(problem.parameter or "")
        return problem.at(where) if where else problem
