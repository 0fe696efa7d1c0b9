"""The messages between a process that receives requests and the process of the engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from PIL import Image

from cam import AnswerOptions, Concept, ExplainedAnswer, Explanation, Observation, Question, Target
from cam.agreement import Fidelity
from cam.answers.answer import (
    Alternative,
    AnswerProgress,
    AnswerToken,
    AnswerWord,
    WordScores,
)
from cam.drawing.heatmap import Box
from cam.drawing.placement import Placement
from cam.drift.reference import Origin
from cam.drift.shift import Comparison, Shift, TooFew
from cam.evaluation.candidate import Candidate
from cam.evaluation.metrics import MetricOptions, Score
from cam.methods.progress import Completeness, Passes, Progress
from cam.observations import Statistics
from service.backend.answers import Boxes, Drift, Outcome, Prediction, ServedAnswer
from service.backend.work import (
    AnswerQuestion,
    CompareDrift,
    Embed,
    Evaluate,
    Explain,
    Factorise,
    Observe,
    Randomise,
    ReadText,
    Work,
)
from service.core import errors
from service.core.choices import Runtime
from service.models.audited import Audited
from service.models.info import LayerInfo, ModelInfo
from service.models.labels import Labels
from service.models.preprocessing import ModelInput, Preprocessing
from service.rpc.frames import Codec


@dataclass(frozen=True)
class Add:
    """Loads one more model in the background."""

    entry: str
    """The model's entry, in JSON."""
    file: str = ""
    """Path of the file that the entry was read from, "" if none."""


@dataclass(frozen=True)
class Remove:
    """Unloads the model."""


@dataclass(frozen=True)
class RemoteCall:
    """A call of the backend or of a model."""

    number: int
    """Number of the call on its connection."""
    model: str
    work: Work[Any] | Add | Remove
    fingerprint: str = ""
    """Fingerprint of the model that the caller knows under this name, for a model's work."""
    listens: bool = False
    """Whether the caller wants to know the progress."""
    log_context: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What each line of the log about this call states, such as the request's id."""


@dataclass(frozen=True)
class Cancelled:
    """The caller no longer waits for the call."""

    number: int


@dataclass(frozen=True)
class Idle:
    """No image of the model is in work at the caller any more; only for a call of `remove`."""

    number: int


@dataclass(frozen=True)
class Shared:
    """The sender has memory for the pixels of its calls; the answer is the same message, once the
    other process has opened it."""

    descriptor: int
    """Number of the file descriptor at the process that receives requests."""


@dataclass(frozen=True)
class Progressed:
    """The progress of a call."""

    number: int
    progress: Progress


@dataclass(frozen=True)
class Returned:
    """The result of a call. The pixels of the call are not needed any more."""

    number: int
    value: Any


@dataclass(frozen=True)
class Raised:
    """The error of a call, also of one that was cancelled. Its pixels are not needed any more."""

    number: int
    problem: errors.Problem


@dataclass(frozen=True)
class ModelSnapshot:
    """One model, as requests see it."""

    ready: bool
    problem: errors.Problem | None
    """What a request for the model is answered at the moment; None if its images are explained."""
    info: ModelInfo | None = None
    """None as long as there is a problem, as for all that follows."""
    devices: str = ""
    copies: int = 0
    runtime: Runtime = "torch"
    fidelities: Mapping[str, Fidelity] = dataclasses.field(default_factory=dict)
    images_a_second: float = 0.0
    fast: frozenset[str] = frozenset()
    """Names of the methods whose maps come from the fast path."""


@dataclass(frozen=True)
class State:
    """All models, as requests see them. It is sent when a connection begins, and at each change."""

    models: Mapping[str, ModelSnapshot]
    ready: bool
    why_not_ready: str
    loaded: bool
    """Whether all models of the catalog have been loaded once."""
    process: int | None = None
    """Number of the process that serves the backend."""


def _problems(problem: type[errors.Problem]) -> Iterator[type[errors.Problem]]:
    yield problem
    for subclass in problem.__subclasses__():
        if subclass.__module__ == errors.__name__:
            yield from _problems(subclass)


_ARRAY = np.zeros(1, np.float32)
_SCALAR = np.float32(0)
_NUMPY = {
    np.ndarray,
    np.dtype,
    _ARRAY.__reduce_ex__(5)[0],  # builds an array from the bytes of its elements
    _ARRAY[::2].__reduce_ex__(2)[0],  # builds an array that is not contiguous
    _SCALAR.__reduce__()[0],
}
"""What the pickles of arrays and of single numbers name."""

CODEC = Codec(
    {
        *(
            RemoteCall,
            Add,
            Remove,
            Cancelled,
            Idle,
            Shared,
            Progressed,
            Returned,
            Raised,
            ModelSnapshot,
            State,
        ),
        *(Explain, Evaluate, Randomise, Observe, Factorise, Embed, ReadText, CompareDrift),
        *(AnswerQuestion, AnswerOptions, ExplainedAnswer),
        *(AnswerProgress, AnswerToken, AnswerWord, Alternative, WordScores),
        *(ServedAnswer, Boxes, Prediction, Outcome, ModelInput, Box),
        *(ModelInfo, LayerInfo, Audited, Labels, Preprocessing, Image.Resampling),
        *(Question, Explanation, Placement, Passes, Completeness, Progress),
        *(Observation, Statistics, Concept),
        *(Fidelity, Candidate, MetricOptions, Score),
        *(Drift, Comparison, Shift, TooFew, Origin),
        *get_args(Target),
        *_problems(errors.Problem),
        *_NUMPY,
        *(set, frozenset),
    }
)
