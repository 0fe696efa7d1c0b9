"""A backend that needs no torch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Any, cast

import numpy as np
from PIL import Image

from cam import ClassTarget, Explanation
from cam.progress import Progress
from service.backend.interface import Backend, Listener, unknown_model
from service.backend.outcome import Outcome, Prediction, ServedAnswer
from service.backend.work import Work
from service.core.errors import Unavailable
from service.core.metrics import Metrics
from service.models.catalog import ModelEntry
from service.models.info import LayerInfo, ModelInfo
from service.models.labels import Labels
from service.models.preprocessing import Preprocessing
from service.rpc.client import RemoteBackend
from service.rpc.server import BackendServer
from tests.waiting import until_async


def info(name: str = "m", fingerprint: str = "one") -> ModelInfo:
    return ModelInfo(
        name=name,
        source="fake",
        precision="float32",
        preprocessing=Preprocessing(8, 8, 8, (0, 0, 0), (1, 1, 1), Image.Resampling.BICUBIC),
        kind="classes",
        activation="softmax",
        unnamed=None,
        activation_reason="the model has several outputs",
        labels=Labels.of(["cat", "dog"]),
        classes=2,
        layers=(LayerInfo("layer", "Conv2d", (4, 2, 2), None, (2, 2)),),
        default_layer="layer",
        levels=("layer",),
        method_layers={},
        unsuited={},
        max_batch=4,
        batching=None,
        stochastic=None,
        no_default=None,
        fingerprint=fingerprint,
    )


ANSWER = ServedAnswer(
    Prediction(logits=np.array([1, 2], np.float32)),
    (Explanation(ClassTarget(1), 0.5, 0.25, "gradcam", "layer", np.full((2, 2), 3, np.float32)),),
)


class FakeModel:
    devices, copies, alive, runtime = "cpu", 1, True, "torch"

    def __init__(self, model: ModelInfo) -> None:
        self.model = model
        self.fidelities: dict[str, Any] = {}
        self.images_a_second = 12.5
        self.asked: list[Any] = []
        self.value: Any = ANSWER
        self.error: Exception | None = None
        self.going_on = asyncio.Event()
        self.going_on.set()
        self.cancelled = 0

    def is_fast(self, method: str) -> bool:
        return method == "gradcam"

    async def ask(self, work: Work[Any], *, progress: Listener | None = None) -> Outcome[Any]:
        self.asked.append(work)
        if progress:
            progress(Progress(1, 2, "gradcam"))
        try:
            await self.going_on.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error:
            raise self.error
        return Outcome(self.value, 0.1, 0.2, 3)


class FakeBackend:
    worn_out = busy = False

    def __init__(self, *names: str) -> None:
        self.models = {name: FakeModel(info(name)) for name in names}
        self.draining = False
        self.leaving: set[str] = set()
        self.done = asyncio.Event()
        self.loaded: asyncio.Task[Any] = asyncio.create_task(self.done.wait())
        self.loaded.add_done_callback(lambda task: self.tell())
        self.tell: Callable[[], None] = lambda: None
        self.added: list[tuple[ModelEntry, int | None]] = []

    async def __aenter__(self) -> FakeBackend:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.loaded.cancel()

    @property
    def names(self) -> list[str]:
        return list(self.models)

    @property
    def ready(self) -> bool:
        return self.loaded.done()

    @property
    def all_loaded(self) -> bool:
        return self.loaded.done()

    def model_ready(self, name: str) -> bool:
        return self.loaded.done()

    def why_not_ready(self) -> str:
        return "still loading: m"

    def replicas(self, name: str) -> FakeModel:
        if name not in self.models:
            raise unknown_model(name, self.models)
        if not self.loaded.done() or name in self.leaving:
            raise Unavailable(f"model {name!r} is still loading; try again", retry_after=1)
        return self.models[name]

    async def add(self, entry: ModelEntry, *, most: int | None = None) -> None:
        self.added.append((entry, most))
        self.models[entry.name] = FakeModel(info(entry.name))
        self.tell()

    async def remove(self, name: str, in_work: Callable[[], int] = lambda: 0) -> None:
        self.leaving.add(name)
        self.tell()
        await until_async(lambda: not in_work(), 60)
        del self.models[name]
        self.tell()

    def measure(self) -> None:
        pass


@asynccontextmanager
async def served(folder: Path, *names: str) -> AsyncIterator[FakeBackend]:
    """A backend that answers at the folder's socket, not loaded yet."""
    with socket(AF_UNIX) as listening:
        listening.bind(str(folder / "engine"))
        listening.listen()
        backend = FakeBackend(*names or ("m",))
        server = BackendServer(cast(Backend, backend), listening)
        backend.tell = server.tell
        async with backend, server:
            yield backend
    (folder / "engine").unlink()


@asynccontextmanager
async def reached(folder: Path) -> AsyncIterator[RemoteBackend]:
    """A backend that asks the one at the folder's socket."""
    async with RemoteBackend(str(folder / "engine"), Metrics()) as backend:
        yield backend
