"""One image in work: whose model, what is asked of it, and where it is worked on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from service.crew import Crew
from service.guard.lanes import Lane
from service.requests import Instance, P_co
from service.timings import Timings


@dataclass(frozen=True, eq=False)
class Case(Generic[P_co]):
    crew: Crew
    instance: Instance[P_co]
    timings: Timings
    """Of its request."""
    lane: Lane
    """In which the photo has room as long as the case is open."""
