"""Who is told the answers to live traffic, and what only they can be asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from cam import Question
from service.backend.outcome import ServedAnswer
from service.backend.work import Value, Work
from service.core.metrics import Metrics
from service.models.catalog import ModelEntry
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput


class Watch(Protocol):
    """Is told the answers of one model that were computed for live traffic."""

    def answered(
        self,
        seen: ModelInput,
        questions: Sequence[Question],
        answer: ServedAnswer,
        explain: Callable[[Question], Awaitable[ServedAnswer]],
    ) -> None:
        """Take notice of an answer.

        Args:
            questions: the questions as they were asked.
            explain: answers a question about the same image, at background priority.
        """

    async def close(self) -> None:
        """End all work of the watch."""


MakeWatch = Callable[[ModelEntry, ModelInfo, Metrics], Watch]
"""Makes the watch of a model by its entry; raises a ConfigError if a key of it is wrong."""


class WatchWork(Work[Value]):
    """Work of a watch, for which no model runs. Its outcome has times and a batch size of 0."""

    async def result(self, watches: Sequence[Watch]) -> Value:
        """Do the work.

        Args:
            watches: all watches of the model.
        """
        raise NotImplementedError
