"""The interface of what computes: all models, and one of them.

`service.engine.manager` implements it in the same process, `service.rpc.client` for a backend in
another process. Routes, jobs and the pipeline know this interface alone, so they need no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cam import Concept, Observation, Question, Target
from cam.agreement import Fidelity
from cam.errors import did_you_mean
from cam.evaluation.candidate import Candidate
from cam.evaluation.metrics import Options, Scores
from cam.methods.progress import Progress
from service.backend.answers import Answer
from service.backend.drift import Drift
from service.backend.outcome import Outcome
from service.core.choices import Runtime
from service.core.errors import UnknownModel
from service.core.pool import Priority
from service.models.catalog import ModelEntry
from service.models.info import ModelInfo
from service.models.preprocessing import ModelInput

Listener = Callable[[Progress], None]
Pixels = NDArray[np.uint8]
"""An image as the model sees it, not normalised: RGB (H, W, 3)."""
Stage = list[NDArray[np.float32] | None]
"""The maps of one stage of a randomisation, one for each question and layer."""
NOTHING = Question((), "gradcam", ())
"""A question that asks for no map, so that its answer holds only the prediction."""


OBSERVED_AT_ONCE: Final = 2
"""Number of images whose layers are observed at a time. The outputs of all layers of a model take
some hundred megabytes."""


def naming(method: str, progress: Listener) -> Listener:
    """Return a listener that adds the method's name to each report."""
    return lambda step: progress(replace(step, method=method))


def unknown_model(name: str, names: Collection[str]) -> UnknownModel:
    """Return the problem of a request for a model that does not exist.

    Args:
        names: the names of the models that exist.
    """
    if not names:
        return UnknownModel("the service has no model: each was removed")
    known = ", ".join(names) + did_you_mean(name, names)
    return UnknownModel(f"there is no model {name[:80]!r}; the models are {known}")


class ModelBackend(Protocol):
    """Answers questions about preprocessed images, for one model."""

    @property
    def model(self) -> ModelInfo:
        """What is known of the model."""

    @property
    def devices(self) -> str:
        """Names of the devices, separated by commas."""

    @property
    def runtime(self) -> Runtime:
        """What runs the model for the methods that `is_fast` names."""

    @property
    def fidelity(self) -> float | None:
        """Worst fidelity of the methods that use the fast path; None if no method does."""

    @property
    def fidelities(self) -> Mapping[str, Fidelity]:
        """Method name → fidelity of its fast maps to the exact maps."""

    def is_fast(self, method: str) -> bool:
        """Return whether the method's maps at the default layer come from the fast path."""

    @property
    def alive(self) -> bool:
        """Whether questions are answered at the moment."""

    @property
    def copies(self) -> int:
        """Number of copies of the model, each on its own device or cores."""

    async def answer(
        self,
        seen: ModelInput,
        *questions: Question,
        progress: Listener | None = None,
        priority: Priority = "interactive",
        until: float | None = None,
        watched: bool = False,
    ) -> Outcome[Answer]:
        """Answer one or more questions about one image. An answer from the cache has times and a
        batch size of 0.

        Args:
            questions: at least one, all with the same targets and each with a different method.
                One-pass methods share a forward pass, and those that use the fast path share
                another one. Each method of many passes runs by itself. If the model chooses the
                class, all methods explain the same class.
            progress: called with the progress of methods of many passes.
            priority: background questions run at lower priority than interactive ones, and their
                answers are not cached.
            until: deadline on the clock of `time.monotonic`. After it, a method of many passes
                that has no budget of its own stops and uses the passes that it has made.
            watched: whether the photo is live traffic, by which the model is watched for drift: an
                ordinary explanation or prediction. What is made to be scored, or by jobs, is not.

        Returns:
            One answer, with its explanations in the order of the questions.

        Raises:
            QueueFull: if the model's queue is full.
            Unavailable: if the engine takes no more items, or its worker has ended.
            Unexplainable: if `cam` cannot explain the image.
            OutOfMemory: if there is not enough memory even for this image alone.
        """

    async def evaluate(
        self,
        pixels: Pixels,
        question: Question,
        candidates: Sequence[Candidate],
        metrics: Sequence[str],
        options: Options,
        *,
        progress: Listener | None = None,
    ) -> Outcome[list[Scores]]:
        """Score maps of one image, at background priority.

        Args:
            question: the question whose answer the maps are; or, for maps from elsewhere, one that
                has their targets.
            metrics: names in `cam.evaluation.metrics.METRICS`.
            progress: called with the number of forward passes that have been made.

        Returns:
            The scores of each map.

        Raises:
            The same errors as `answer`.
        """

    async def randomised(
        self, pixels: Pixels, questions: Sequence[Question], *, stages: int, seed: int
    ) -> Outcome[list[Stage]]:
        """Explain one image by models of which more and more weights are random, at background
        priority: see `cam.evaluation.randomisation`. Other questions are answered by the model's
        own weights meanwhile.

        Args:
            questions: questions with one resolved target each.

        Returns:
            The maps of each stage; None for a map that the changed model does not have.

        Raises:
            The same errors as `answer`.
        """

    async def drift(self) -> Drift:
        """Compare the maps that were served lately with those of the model's reference."""

    async def observe(
        self, pixels: Pixels, layers: tuple[str, ...], target: Target
    ) -> Outcome[list[Observation]]:
        """Observe layers while the model processes one image.

        Raises:
            The same errors as `answer`.
        """

    async def factorise(self, pixels: Pixels, layer: str, count: int) -> Outcome[list[Concept]]:
        """Factorise a layer's activations for one image into `count` concepts.

        Raises:
            The same errors as `answer`.
        """

    async def embed(self, pixels: Pixels, layer: str) -> Outcome[NDArray[np.float32]]:
        """Return a layer's embedding of one image, (D,).

        Raises:
            The same errors as `answer`.
        """


class Backend(Protocol):
    """All models: which there are, whether they are ready, and adding and removing them.

    Use with `async with`. Entering returns at once and the models load; the task `loaded` is done
    when the catalog's models are ready, or raises the ConfigError of the model that could not be
    loaded. Leaving finishes the queued items.
    """

    loaded: asyncio.Task[None]
    draining: bool
    """Whether new work is refused because the service shuts down."""

    @property
    def all_loaded(self) -> bool:
        """Whether all models of the catalog are loaded now. Unlike the result of `loaded`, it is
        False again while another process takes the place of the one that had loaded them."""

    async def __aenter__(self) -> Backend: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    def names(self) -> list[str]:
        """Names of the models."""

    @property
    def ready(self) -> bool:
        """Whether at least one model is ready, every essential model is ready unless it is being
        removed, and the service is not draining."""

    @property
    def worn_out(self) -> bool:
        """Whether so many workers hung that the process must be replaced."""

    @property
    def busy(self) -> bool:
        """Whether a thread hangs or builds a model. Only the end of the process stops such a
        thread."""

    def model_ready(self, name: str) -> bool:
        """Return whether a model is warm and has a live worker."""

    def why_not_ready(self) -> str:
        """Return the reason why the service is not ready."""

    def replicas(self, name: str) -> ModelBackend:
        """Return what answers questions to a model.

        Raises:
            UnknownModel: if there is no such model; the message names the models that exist.
            ModelFailed: if the model could not be loaded.
            Unavailable: while the model loads, has no worker or is being removed, or while the
                service drains.
        """

    async def add(self, entry: ModelEntry) -> None:
        """Load one more model in the background.

        Raises:
            Conflict: if a model of that name exists, or the number of models is at its maximum.
        """

    async def remove(self, name: str, in_work: Callable[[], int] = lambda: 0) -> None:
        """Refuse new requests for a model, finish the current ones, and unload the model.

        Args:
            in_work: returns the number of the model's images in work, including images that are
                being decoded or are between two passes of a method of many passes.

        Raises:
            UnknownModel: if there is no such model.
            Conflict: if the model is already being unloaded.
        """

    def measure(self) -> None:
        """Bring the gauges up to date."""
