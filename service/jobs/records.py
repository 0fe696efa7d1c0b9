"""What a job is, apart from how it is kept."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pydantic import ValidationError

from service.pipeline.parameters import Parameters
from service.pipeline.validation import parameter_problem

LONGEST_ID: Final = 1000
"""Characters of an item's id: archives hold whole paths."""
MOST_ID_BYTES: Final = 2500
"""And in UTF-8: PostgreSQL has no more in an index."""
State = Literal["waiting", "running", "done", "cancelled"]
Source = dict[str, Any]
"""Where an item's image is: {"blob": [offset, length]}, {"path": …}, {"uri": …}, {"url": …}, or
{"problem": {…}} where it was told on the way in that it is none."""


@dataclass(frozen=True)
class NewItem:
    """One image of a job that comes in."""

    id: str
    source: Source
    own: dict[str, Any] = field(default_factory=dict)
    """Parameters of its own."""


@dataclass(frozen=True)
class NewJob:
    """What a job is asked to do."""

    model: str
    weights: str
    """Their fingerprint: with others the rest of its maps would not be of one kind."""
    parameters: Parameters
    owner: str
    idempotency: str | None = None


@dataclass(frozen=True)
class Job:
    """A job that was accepted."""

    id: str
    state: State
    owner: str
    model: str
    weights: str
    parameters: str
    """In JSON, as they were sent."""
    warnings: tuple[str, ...]
    total: int
    done: int
    failed: int
    created: float
    started: float | None
    finished: float | None

    @property
    def ended(self) -> bool:
        return self.state in ("done", "cancelled")

    @property
    def settled(self) -> int:
        """Items that have a result or a problem."""
        return self.done + self.failed


@dataclass(frozen=True)
class Leased:
    """An item that a runner has to itself."""

    job: str
    model: str
    weights: str
    """The model's fingerprint."""
    number: int
    id: str
    source: Source
    parameters: Parameters
    alone: bool
    """It was at hand when processes died: nothing else shall be while it is worked on."""


@dataclass(frozen=True)
class Finished:
    """An item that has a result or a problem."""

    cursor: int
    number: int
    id: str
    problem: dict[str, Any] | None


def job_of(row: Any) -> Job:
    """From the row that is kept of it."""
    return Job(
        id=row.id,
        state=row.state,
        owner=row.owner,
        model=row.model,
        weights=row.weights,
        parameters=row.parameters,
        warnings=tuple(json.loads(row.warnings)),
        total=row.total,
        done=row.done,
        failed=row.failed,
        created=row.created,
        started=row.started,
        finished=row.finished,
    )


def storable(name: str) -> str:
    """Without what no database and no JSON takes; different names stay different, but for zeros."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\x00", "\ufffd")


def parameters_json(parameters: Parameters) -> str:
    return parameters.model_dump_json(exclude_unset=True, by_alias=True)


def parameters_of(sent: str, own: dict[str, Any]) -> Parameters:
    """As they were sent, with an item's own.

    Raises:
        Problem: if they are none, as an item's own may be.
    """
    try:
        return Parameters.model_validate({**json.loads(sent), **own})
    except ValidationError as error:
        raise parameter_problem(error, Parameters) from None
