"""The models that were added and removed while the service ran. They are kept in a file that
outlives the process of the models, so that a process that takes its place has the same models.

    journal = FileJournal(folder)
    journal.add(entry)
    with journal.loading(entry.name):
        …                                 # if the process dies here, the next one leaves it out
    journal.configured(entries)           # those of the configuration that were not removed
    journal.added()                       # those that were added
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from service.backend.journal import Journal
from service.models.catalog import ModelEntry

NAME: Final = "models.json"
"""Name of the file in the folder that the processes of the service share."""
KILLED: Final = (
    "the process of the models ended while it loaded this model, as it does when memory runs out"
)
log = logging.getLogger(__name__)


class AddedModel(BaseModel):
    """A model that was added while the service ran."""

    entry: ModelEntry
    file: Path | None = None
    """The file that the entry was read from, if any."""
    loading: bool = False
    failure: str | None = None
    """Reason why it must not be loaded again; None if there is none."""


class _Changes(BaseModel):
    added: dict[str, AddedModel] = {}
    removed: set[str] = set()


class FileJournal(Journal):
    """The changes of the models since the service started.

    A model that was being loaded when the last process ended is marked as failed, so that it does
    not end the next one as well.

    Args:
        folder: the folder of its file, which only the process of the models writes.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME
        self._changes = _Changes(added={}, removed=set())  # given, so that they are written
        if not self._file.exists():
            return
        try:
            self._changes = _Changes.model_validate_json(self._file.read_bytes())
        except (OSError, ValidationError) as error:
            log.error("the models that were added or removed are lost: %s", error)
            return
        for name, added in self._changes.added.items():
            if added.loading:
                log.error("model %s is left out: %s", name, KILLED)
                added.loading, added.failure = False, KILLED
        self._write()

    def configured(self, entries: Sequence[ModelEntry]) -> list[ModelEntry]:
        return [entry for entry in entries if entry.name not in self._changes.removed]

    def added(self) -> list[tuple[ModelEntry, str | None]]:
        return [(one.entry.of_file(one.file), one.failure) for one in self._changes.added.values()]

    def add(self, entry: ModelEntry) -> None:
        self._changes.added[entry.name] = AddedModel(entry=entry, file=entry.file)
        self._write()

    def remove(self, name: str) -> None:
        if self._changes.added.pop(name, None) is None:
            self._changes.removed.add(name)
        self._write()

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        self._note_loading(name, is_loading=True)
        try:
            yield
        finally:
            self._note_loading(name, is_loading=False)

    def _note_loading(self, name: str, *, is_loading: bool) -> None:
        if added := self._changes.added.get(name):  # it may have been removed in the meantime
            added.loading = is_loading
            self._write()

    def _write(self) -> None:
        # It has to outlive this process, not the machine, so nothing is flushed to the disk.
        content = self._changes.model_dump_json(exclude_unset=True).encode()
        temporary = self._file.with_suffix(".tmp")
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(handle, "wb") as opened:
                opened.write(content)
            temporary.replace(self._file)
        except OSError as error:
            log.error("a process that replaces this one will not know its models: %s", error)
