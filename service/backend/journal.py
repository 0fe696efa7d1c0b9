"""What is kept of the models that are added and removed while the service runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from service.models.catalog import ModelEntry


class Journal:
    """Is told which models are added and removed, so that a process that takes the place of this
    one has the same models. This class keeps nothing; a feature may."""

    def configured(self, entries: Sequence[ModelEntry]) -> Sequence[ModelEntry]:
        """Return the entries of the configuration whose models were not removed."""
        return entries

    def added(self) -> Sequence[tuple[ModelEntry, str | None]]:
        """Return the models that were added, in that order, each with the reason why it must not be
        loaded again, or None if there is none."""
        return ()

    def add(self, entry: ModelEntry) -> None:
        """Note that a model is added."""

    def remove(self, name: str) -> None:
        """Note that a model is removed, whether it was added or is of the configuration."""

    def loading(self, name: str) -> AbstractContextManager[None]:
        """Note that an added model is being loaded, as long as the block is open."""
        return nullcontext()
