"""What `:answer` asks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import ClassVar

from cam import AnswerOptions, ExplainedAnswer
from service.backend.work import Pixels, Running, Steps, StepWork


@dataclass(frozen=True, eq=False)
class AnswerQuestion(StepWork[ExplainedAnswer]):
    """Answers a question about one image and explains each word, of a model that answers. Its
    progress is the tokens, one by one: `cam.answers.answer.AnswerProgress`."""

    pixels: Pixels
    """The photo, of any size: the model's own processor resizes it."""
    question: str
    options: AnswerOptions
    until: float | None = None
    """Time of `time.monotonic` at which the answer is cut off."""
    at_once: ClassVar[int | None] = 4
    """Each holds the keys and values of what it has read."""

    def steps(self, running: Running) -> Steps[ExplainedAnswer]:
        from cam import answer_in_steps

        until = self.until
        assert running.model.answering  # no other model is asked
        return (
            yield from answer_in_steps(
                running.model.answering,
                self.pixels,
                self.question,
                self.options,
                stop=lambda: until is not None and monotonic() > until,
            )
        )
