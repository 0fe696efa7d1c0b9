"""What a model is asked to do: the classes of the operations that several features need."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cam import CamError, ExplainedImage, Question, TextTarget
from cam.evaluation.candidate import Candidate
from cam.evaluation.metrics import MetricOptions, Scores
from cam.progress import Progress
from service.backend.outcome import ServedAnswer
from service.core.pool import Priority
from service.models.preprocessing import ModelInput

if TYPE_CHECKING:
    from torch import Tensor

    from service.loading.served_model import ServedModel

Value = TypeVar("Value")
Pixels = NDArray[np.uint8]
"""An image as the model sees it, not normalised: RGB (H, W, 3)."""
NOTHING: Final = Question((), "gradcam", ())
"""A question that asks for no map, so that its answer holds only the prediction."""
Steps = Generator[Progress, None, Value | CamError]
"""Work in steps, between which other work runs. It yields its progress, and returns its result or
why there is none."""


class Running(Protocol):
    """The model as work meets it, in the thread that runs it."""

    @property
    def model(self) -> ServedModel:
        """The model with its preprocessing."""

    @property
    def group(self) -> int:
        """Number of images that a forward pass of background work holds."""

    def input(self, pixels: Sequence[Pixels]) -> Tensor:
        """Return images of one size as the module takes them, (N, 3, H, W)."""

    def answered(
        self, images: Tensor, questions: Sequence[Question]
    ) -> Sequence[ExplainedImage | CamError]:
        """Answer one question about each image, by the fast path if it computes in float32."""

    def text(self, work: ReadText) -> TextTarget:
        """Return the target of a text, which is kept for the next time."""


class Work(Generic[Value]):
    """What a model is asked to do; `Value` is the type of the result."""

    heavy: ClassVar[bool] = False
    """Whether the result takes up to some hundred megabytes, so that few are made at a time."""
    at_once: ClassVar[int | None] = None
    """Number of works of this kind that a copy of the model does at a time; None for all. Each
    waits without a place in the queue."""

    @property
    def prompts(self) -> tuple[str, ...]:
        """Texts that are the classes for this work, of a model that takes prompts; () for its own.
        A data class that has them gives the field a default."""
        return ()


class StepWork(Work[Value]):
    """Work that runs by itself, in steps; about an image if it has a field `pixels`."""

    priority: ClassVar[Priority] = "interactive"

    def steps(self, running: Running) -> Steps[Value]:
        """Do the work in the thread that runs the model."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Explain(Work[ServedAnswer]):
    """Answers one or more questions about one image: one answer, with its explanations in the order
    of the questions. An answer from the cache has times and a batch size of 0."""

    seen: ModelInput
    questions: Sequence[Question] = (NOTHING,)
    """At least one, all with the same targets and each with a different method. One-pass methods
    share a forward pass, and those that use the fast path share another one. Each method of many
    passes runs by itself. If the model chooses the class, all methods explain the same class."""
    priority: Priority = "interactive"
    """Background questions run at lower priority than interactive ones, and their answers are not
    cached."""
    until: float | None = None
    """Deadline on the clock of `time.monotonic`, which is the same in all processes of a machine.
    After it, a method of many passes that has no budget of its own stops and uses the passes that
    it has made."""
    watched: bool = False
    """Whether the photo is live traffic, whose answer watches are told: an ordinary explanation or
    prediction. What is made to be scored, or by jobs, is not."""
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluate(StepWork[list[Scores]]):
    """Scores maps of one image, at background priority: the scores of each map. Its progress is the
    number of forward passes that have been made."""

    pixels: Pixels
    question: Question
    """The question whose answer the maps are; or, for maps from elsewhere, one that has their
    targets."""
    candidates: Sequence[Candidate]
    metrics: Sequence[str]
    """Names in `cam.evaluation.metrics.METRICS`."""
    options: MetricOptions
    prompts: tuple[str, ...] = ()
    priority: ClassVar[Priority] = "background"

    def steps(self, running: Running) -> Steps[list[Scores]]:
        from cam import evaluate_in_steps

        return (
            yield from evaluate_in_steps(
                running.model.module,
                running.input([self.pixels])[0],
                self.question,
                self.candidates,
                self.metrics,
                self.options,
                answer=running.answered,
                chunk=running.group,
                reading=running.model.reading,
                pixels=self.pixels,
                normalise=lambda some: running.input(list(some)),
            )
        )


@dataclass(frozen=True, eq=False)
class Embed(StepWork[NDArray[np.float32]]):
    """Returns a layer's embedding of one image, (D,)."""

    pixels: Pixels
    layer: str

    def steps(self, running: Running) -> Steps[NDArray[np.float32]]:
        from cam import embed

        yield from ()
        return embed(running.model.module, running.input([self.pixels]), self.layer)


@dataclass(frozen=True)
class ReadText(StepWork[TextTarget]):
    """Returns the target that explains what in an image fits a text, of a model that takes
    prompts."""

    text: str
    minus: str | None = None
    against: bool = False
    words: bool = False
    """Whether the importance of each word is asked for."""

    def steps(self, running: Running) -> Steps[TextTarget]:
        yield from ()
        return running.text(self)
