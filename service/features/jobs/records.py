"""The data classes of jobs and items, independent of their storage."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, Final

from service.core.choices import Fit
from service.features.jobs.schemas import ENDED, JobState
from service.pipeline.parameters import Parameters
from service.pipeline.validation import validated

LONGEST_ID: Final = 1000
"""Largest number of characters of an item's id. Ids from archives are whole paths."""
MOST_ID_BYTES: Final = 2500
"""Largest number of bytes of an item's id in UTF-8, because PostgreSQL limits index entries."""
Source = dict[str, Any]
"""Location of an item's image: {"blob": [offset, length]}, {"path": …}, {"uri": …} or {"url": …};
or {"problem": {…}} if the image was rejected when the job was received."""


@dataclass(frozen=True)
class NewItem:
    """One image of a job that is being received."""

    id: str
    source: Source
    own: dict[str, Any] = field(default_factory=dict)
    """Parameters of this item alone."""


@dataclass(frozen=True)
class NewJob:
    """The order of a job: model, parameters and owner."""

    model: str
    weights: str
    """Fingerprint of the model. The job waits if the model's fingerprint changes, so that all its
    maps come from the same weights."""
    parameters: Parameters
    owner: str
    idempotency: str | None = None
    kind: str = "explain"
    default_fit: Fit = "squash"
    """What the fit `auto` means for the model."""

    @property
    def stored(self) -> str:
        """The parameters in JSON with the fit by its own name, so that the job's maps stay the same
        if the model's default changes before they are made."""
        fit = self.parameters.fit
        resolved = {"fit": self.default_fit if fit == "auto" else fit}
        return parameters_json(self.parameters.model_copy(update=resolved))


@dataclass(frozen=True)
class Job:
    """A job that was accepted."""

    id: str
    state: JobState
    owner: str
    model: str
    weights: str
    parameters: str
    """The parameters in JSON, as they were sent, and the fit."""
    warnings: tuple[str, ...]
    total: int
    done: int
    failed: int
    created: float
    started: float | None
    finished: float | None
    kind: str = "explain"

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def settled(self) -> int:
        """Number of items that have a result or a problem."""
        return self.done + self.failed


@dataclass(frozen=True)
class Leased:
    """An item that is leased to one runner."""

    job: str
    model: str
    weights: str
    """Fingerprint of the model."""
    number: int
    id: str
    source: Source
    parameters: Parameters
    alone: bool
    """Whether no other item may be processed at the same time, because processes died while they
    had this item in work."""
    kind: str = "explain"
    total: int = 1
    """Number of items of the job."""


@dataclass(frozen=True)
class Finished:
    """An item that has a result or a problem."""

    cursor: int
    number: int
    id: str
    problem: dict[str, Any] | None


def job_of(row: Any) -> Job:
    """Return the job of a row of the jobs table."""
    columns = {column.name: getattr(row, column.name) for column in fields(Job)}
    return Job(**columns | {"warnings": tuple(json.loads(row.warnings))})


def storable(name: str) -> str:
    """Return a name without characters that databases and JSON cannot store. Different names stay
    different, except that a NUL character becomes U+FFFD."""
    return name.encode("utf-8", "backslashreplace").decode().replace("\x00", "\ufffd")


def parameters_json(parameters: Parameters) -> str:
    return parameters.model_dump_json(exclude_unset=True, by_alias=True)


def parameters_of(sent: str, own: dict[str, Any]) -> Parameters:
    """Return the parameters of an item: those sent with the job, overridden by the item's own.
    Without a fit they are of a version in which the default was `crop`.

    Raises:
        Problem: if they are not valid together.
    """
    return validated(Parameters, {"fit": "crop", **json.loads(sent), **own})
