"""What a model is asked to do: a class for each operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from cam import (
    AnswerOptions,
    Concept,
    ExplainedAnswer,
    Observation,
    Question,
    Target,
    TextTarget,
)
from cam.evaluation.candidate import Candidate
from cam.evaluation.metrics import MetricOptions, Scores
from service.backend.answers import Drift, ServedAnswer
from service.core.pool import Priority
from service.models.preprocessing import ModelInput

Value = TypeVar("Value")
Pixels = NDArray[np.uint8]
"""An image as the model sees it, not normalised: RGB (H, W, 3)."""
Stage = list[NDArray[np.float32] | None]
"""The maps of one stage of a randomisation, one for each question and layer."""
NOTHING: Final = Question((), "gradcam", ())
"""A question that asks for no map, so that its answer holds only the prediction."""


class Work(Generic[Value]):
    """What a model is asked to do; `Value` is the type of the result."""


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
    """Whether the photo is live traffic, by which the model is watched for drift: an ordinary
    explanation or prediction. What is made to be scored, or by jobs, is not."""
    prompts: tuple[str, ...] = ()
    """Texts that are the classes for this work, of a model that takes prompts; () for its own."""


@dataclass(frozen=True, eq=False)
class Evaluate(Work[list[Scores]]):
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
    """See `Explain`."""


@dataclass(frozen=True, eq=False)
class Randomise(Work[list[Stage]]):
    """Explains one image by the model with more and more random weights, at background priority:
    see `cam.evaluation.randomisation`. The result has the maps of each stage, and None for a map
    that the changed model does not have. Meanwhile the model's own weights answer other
    questions."""

    pixels: Pixels
    questions: Sequence[Question]
    """Questions with one resolved target each."""
    stages: int
    seed: int


@dataclass(frozen=True, eq=False)
class Observe(Work[list[Observation]]):
    """Observes layers while the model processes one image."""

    pixels: Pixels
    layers: tuple[str, ...]
    target: Target
    prompts: tuple[str, ...] = ()
    """See `Explain`."""


@dataclass(frozen=True, eq=False)
class Factorise(Work[list[Concept]]):
    """Factorises a layer's activations for one image into `count` concepts."""

    pixels: Pixels
    layer: str
    count: int


@dataclass(frozen=True, eq=False)
class Embed(Work[NDArray[np.float32]]):
    """Returns a layer's embedding of one image, (D,)."""

    pixels: Pixels
    layer: str


@dataclass(frozen=True)
class ReadText(Work[TextTarget]):
    """Returns the target that explains what in an image fits a text, of a model that takes
    prompts."""

    text: str
    minus: str | None = None
    against: bool = False
    words: bool = False
    """Whether the importance of each word is asked for."""


@dataclass(frozen=True, eq=False)
class AnswerQuestion(Work[ExplainedAnswer]):
    """Answers a question about one image and explains each word, of a model that answers. Its
    progress is the tokens, one by one: `cam.answers.answer.AnswerProgress`."""

    pixels: Pixels
    """The photo, of any size: the model's own processor resizes it."""
    question: str
    options: AnswerOptions
    until: float | None = None
    """Time of `time.monotonic` at which the answer is cut off."""


@dataclass(frozen=True)
class CompareDrift(Work[Drift]):
    """Compares the maps that were served lately with those of the model's reference. Its outcome
    has times and a batch size of 0."""
