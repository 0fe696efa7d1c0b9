"""The interface of what computes: all models, and one of them.

`service.engine.manager` implements it in the same process, `service.rpc.client` for a backend in
another process. Routes, jobs and the pipeline know this interface alone, so they need no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Final, Protocol

from cam.agreement import Fidelity
from cam.errors import did_you_mean
from cam.progress import Progress
from service.backend.outcome import Outcome
from service.backend.work import Value, Work
from service.core.choices import RuntimeName
from service.core.errors import UnknownModel
from service.models.catalog import ModelEntry
from service.models.info import ModelInfo

Listener = Callable[[Progress], None]
NO_MODEL: Final = "no model is loaded; add one with POST /v1/models"
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
        return UnknownModel(NO_MODEL)
    known = ", ".join(names) + did_you_mean(name, names)
    return UnknownModel(f"there is no model {name[:80]!r}; the models are {known}")


class ModelBackend(Protocol):
    """Does work about preprocessed images, for one model."""

    @property
    def model(self) -> ModelInfo:
        """What is known of the model."""

    @property
    def devices(self) -> str:
        """Names of the devices, separated by commas."""

    @property
    def runtime(self) -> RuntimeName:
        """What runs the model for the methods that `is_fast` names."""

    @property
    def fidelities(self) -> Mapping[str, Fidelity]:
        """Method name → fidelity of its fast maps to the exact maps."""

    def is_fast(self, method: str) -> bool:
        """Return whether the method's maps at the default layer come from the fast path."""

    @property
    def images_a_second(self) -> float:
        """Number of images that are explained in a second, as the warm-up has measured it; 0 if it
        has not."""

    @property
    def alive(self) -> bool:
        """Whether questions are answered at the moment."""

    @property
    def copies(self) -> int:
        """Number of copies of the model, each on its own device or cores."""

    async def ask(self, work: Work[Value], *, progress: Listener | None = None) -> Outcome[Value]:
        """Do a piece of work: see the classes of `service.backend.work`.

        Args:
            progress: called with the progress of work of many passes.

        Raises:
            QueueFull: if the model's queue is full.
            Unavailable: if the engine takes no more items, or its worker has ended.
            Unexplainable: if `cam` cannot explain the image.
            OutOfMemory: if there is not enough memory even for this image alone.
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
        """Whether every model of the catalog is ready unless it is being removed, and the service
        is not draining. A service without models is ready."""

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

    async def add(self, entry: ModelEntry, *, most: int | None = None) -> None:
        """Load one more model in the background.

        Args:
            most: largest number of models; None sets no limit.

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
