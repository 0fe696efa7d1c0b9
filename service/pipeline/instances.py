"""One image and all that is asked of it, however it was sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.core.errors import Problem
from service.pipeline.parameters import PredictParameters

P = TypeVar("P", bound=PredictParameters)
P_co = TypeVar("P_co", bound=PredictParameters, covariant=True)


@dataclass(frozen=True)
class Remote:
    """An image that is only named."""

    url: str


@dataclass(frozen=True)
class Instance(Generic[P_co]):
    """One image and all that is asked of it."""

    index: int
    id: str | None
    image: bytes | Problem | Remote
    """The bytes as sent; a problem where they could not be had; where they are to be had."""
    pointer: str
    """Where in the request the image is."""
    parameters: P_co
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where in the request each parameter that it gives is."""

    def blame(self, problem: Problem) -> Problem:
        """The problem with a pointer to the parameter that it is about."""
        where = self.origins.get(problem.parameter or "")
        return problem.at(where) if where else problem
