"""A worker that ends, and another one in its place."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from service.core.disk_cache import DiskCache
from service.core.errors import ConfigError, Problem
from service.core.metrics import Metrics
from service.engine import lifecycle as place
from service.engine.engine import Engine
from service.engine.lifecycle import ModelLifecycle
from service.engine.manager import ModelManager
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.engine.test_batch_dependence import TINY
from tests.waiting import until_async

pytestmark = pytest.mark.anyio
SOON = 20


@asynccontextmanager
async def watched(entry: ModelEntry = TINY) -> AsyncIterator[ModelLifecycle]:
    lifecycle = ModelLifecycle(
        entry, essential=True, max_queue=8, cache_bytes=0, hang_seconds=60, metrics=Metrics()
    )
    await lifecycle.load()
    watching = asyncio.create_task(lifecycle.watch())
    try:
        yield lifecycle
        assert not watching.done(), "nobody watches any more"
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        await lifecycle.leave(SOON)


def workers() -> int:
    return sum(thread.name.startswith("engine tiny") for thread in threading.enumerate())


@pytest.mark.parametrize("fails", ["load", "warm"])
async def test_a_worker_that_cannot_be_replaced_is_tried_again(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(place, "AGAIN_SECONDS", 0.05)
    left = 3

    def fail() -> None:
        nonlocal left
        if left:
            left -= 1
            raise RuntimeError("the device is busy")

    async with watched() as lifecycle:
        assert lifecycle.replicas
        before = workers()
        warm = Engine.warm

        def load_at_last(entry: ModelEntry, cache: DiskCache) -> ServedModel:
            fail()
            return load(entry, cache)

        async def warm_at_last(engine: Engine) -> None:
            await warm(engine)
            fail()

        if fails == "load":
            monkeypatch.setattr(place, "load", load_at_last)
        else:
            monkeypatch.setattr(Engine, "warm", warm_at_last)
        await lifecycle.replicas.engines[0].batcher.abandon()
        await until_async(lambda: not left and lifecycle.ready, SOON)
        assert workers() <= before, "those that failed are gone"
    assert sum("cannot be replaced" in record.message for record in caplog.records) == 3
    assert sum("it is replaced" in record.message for record in caplog.records) == 1


async def test_a_detector_that_finds_nothing_in_the_warm_up_is_told_what_to_set() -> None:
    entry = ModelEntry(
        name="strict",
        source="factory:tests.zoo.factories:yolo",
        detections="yolov8",
        input_size=64,
        min_score=0.9999,
        device="cpu",
    )
    said = r"^model 'strict': key 'min_score': the model detects nothing in this image, .* 0\.001"
    with pytest.raises(ConfigError, match=said):
        async with watched(entry):
            raise AssertionError("it is ready")


async def test_who_subscribes_is_told_of_each_change() -> None:
    """What receives requests in another process answers by what it was told last."""
    manager = ModelManager([TINY], settings=Settings(max_queue=4), metrics=Metrics())

    def state() -> tuple[bool, dict[str, str]]:
        found = {}
        for name in manager.names:
            try:
                found[name] = "ready" if manager.replicas(name).alive else "away"
            except Problem as problem:
                found[name] = problem.detail.split(f"'{name}' ")[1][:20]
        return manager.all_loaded, found

    told: list[tuple[bool, dict[str, str]]] = []
    manager.subscribe(lambda: told.append(state()))

    async def until(said: str, name: str) -> None:
        await until_async(lambda: told and told[-1][1].get(name) == said, SOON)
        assert told[-1] == state()

    async with manager:
        await until("ready", "tiny")
        await manager.loaded
        assert told[-1] == (True, {"tiny": "ready"})
        (engine,) = manager.replicas("tiny").engines
        await engine.batcher.abandon()
        await until("is getting a new wor", "tiny")
        await until("ready", "tiny")
        source = "factory:tests.zoo.factories:raising"
        await manager.add(ModelEntry(name="bad", source=source, weights="none"))
        assert told[-1][1] == {"tiny": "ready", "bad": "is still loading; tr"}
        await until("could not be loaded:", "bad")
        await manager.remove("tiny")
        assert [said.get("tiny") for _, said in told[-2:]] == ["is being unloaded; t", None]


async def test_the_thread_that_loaded_a_model_ends() -> None:
    """While it lived, the threads that OpenMP started for it would slow down the worker's."""
    before = set(threading.enumerate())
    async with watched() as lifecycle:
        assert lifecycle.replicas

        def new() -> list[str]:
            return [thread.name for thread in set(threading.enumerate()) - before]

        # The thread ends after its result is there.
        await until_async(lambda: not [n for n in new() if n.startswith(("load", "asyncio"))])
