"""A backend in another process, here across a socket within one."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import socket
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from cam import ClassTarget, Question
from cam.drawing.placement import Box
from cam.progress import Progress
from service.backend.work import (
    Explain,
)
from service.core.errors import InternalError, Unavailable, Unexplainable, UnknownModel
from service.models.catalog import ModelEntry
from service.models.preprocessing import ModelInput
from service.rpc.client import RemoteBackend
from service.rpc.frames import LENGTH
from tests.service.rpc.fake import FakeBackend, FakeModel, info, reached, served
from tests.waiting import stays_async, until_async

pytestmark = pytest.mark.anyio
SEEN = ModelInput(np.arange(192, dtype=np.uint8).reshape(8, 8, 3), Box(0, 0, 8, 8), b"digest")
QUESTION = Question((ClassTarget(1),), "gradcam", ("layer",))
ASKED = Explain(SEEN, [QUESTION])


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[tuple[FakeBackend, RemoteBackend]]:
    async with served(tmp_path) as fake, reached(tmp_path) as remote:
        fake.done.set()
        await asyncio.wait_for(remote.loaded, 5)
        yield fake, remote


async def test_an_answer_of_the_other_process(pair: tuple[FakeBackend, RemoteBackend]) -> None:
    fake, remote = pair
    model = remote.replicas("m")
    assert model.model.labels.name(1) == "dog"
    assert (model.devices, model.copies, model.alive) == ("cpu", 1, True)
    assert model.is_fast("gradcam")
    assert not model.is_fast("scorecam")
    told: list[Progress] = []
    work = Explain(SEEN, [QUESTION, QUESTION], "background", until=7.5, watched=True)
    outcome = await model.ask(work, progress=told.append)
    assert (outcome.queued_seconds, outcome.run_seconds, outcome.batch_size) == (0.1, 0.2, 3)
    (explanation,) = outcome.value.explanations
    np.testing.assert_array_equal(explanation.map, np.full((2, 2), 3))
    assert told == [Progress(1, 2, "gradcam")]
    assert repr(fake.models["m"].asked) == repr([work])


async def test_its_errors_are_raised_here(
    pair: tuple[FakeBackend, RemoteBackend], caplog: pytest.LogCaptureFixture
) -> None:
    fake, remote = pair
    fake.models["m"].error = Unexplainable("the map is empty", pointer="/query/target")
    with pytest.raises(Unexplainable, match="the map is empty") as caught:
        await remote.replicas("m").ask(ASKED)
    assert caught.value.pointer == "/query/target"
    fake.models["m"].error = ZeroDivisionError("a defect")
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(InternalError, match="its log has the cause"),
    ):
        await remote.replicas("m").ask(ASKED)
    assert "ZeroDivisionError" in caplog.text
    fake.models["m"].error = None
    await remote.replicas("m").ask(ASKED)


async def test_an_error_keeps_no_pixels(pair: tuple[FakeBackend, RemoteBackend]) -> None:
    """Until a garbage collection, which the process of the models makes seldom."""
    fake, remote = pair
    fake.models["m"].error = Unexplainable("the map is empty")

    async def asked() -> weakref.ref[Any]:
        pixels = np.zeros((8, 8, 3), np.uint8)
        with pytest.raises(Unexplainable):
            await remote.replicas("m").ask(
                Explain(ModelInput(pixels, SEEN.box, b"other"), [QUESTION])
            )
        return weakref.ref(pixels)

    gc.collect()
    gc.disable()
    try:
        kept = await asked()
        await asyncio.sleep(0)  # the event loop still holds what has woken this task
        assert kept() is None
    finally:
        gc.enable()


async def test_its_log_states_whose_request_it_is(
    pair: tuple[FakeBackend, RemoteBackend],
) -> None:
    fake, remote = pair
    said: list[tuple[bool, dict[str, Any]]] = []

    class Bound(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append((record.exc_info is not None, structlog.contextvars.get_contextvars()))

    fake.models["m"].error = RuntimeError("too bright")
    handler = Bound()
    logging.getLogger().addHandler(handler)
    try:
        with structlog.contextvars.bound_contextvars(request_id="ours"):
            call = remote.replicas("m").ask(ASKED)
            with pytest.raises(InternalError):
                await call
    finally:
        logging.getLogger().removeHandler(handler)
    assert (True, {"request_id": "ours"}) in said
    assert structlog.contextvars.get_contextvars() == {}


async def test_who_enters_knows_the_models_at_once_if_they_are_there(
    pair: tuple[FakeBackend, RemoteBackend], tmp_path: Path
) -> None:
    async with reached(tmp_path) as another:
        assert another.names == ["m"]
        assert another.model_ready("m")


async def test_who_enters_does_not_wait_long_for_an_engine_that_is_away(tmp_path: Path) -> None:
    async with asyncio.timeout(3), reached(tmp_path) as remote:
        assert not remote.ready
        assert remote.why_not_ready() == "the engine is starting"


async def test_a_cancelled_call_ends_its_work(pair: tuple[FakeBackend, RemoteBackend]) -> None:
    fake, remote = pair
    model = fake.models["m"]
    model.going_on.clear()
    asking = asyncio.create_task(remote.replicas("m").ask(ASKED))
    await until_async(lambda: model.asked)
    asking.cancel()
    await until_async(lambda: model.cancelled)


async def test_requests_know_at_once_what_changes(
    pair: tuple[FakeBackend, RemoteBackend],
) -> None:
    fake, remote = pair
    known = remote.replicas("m")
    fake.models["m"] = FakeModel(info(fingerprint="two"))
    with pytest.raises(Unavailable, match="has just been replaced; try again"):
        await known.ask(ASKED)
    fake.tell()
    await until_async(lambda: remote.replicas("m").model.fingerprint == "two")
    await remote.replicas("m").ask(ASKED)
    fake.leaving.add("m")
    fake.tell()

    def away() -> bool:
        try:
            remote.replicas("m")
        except Unavailable:
            return True
        return False

    await until_async(away)
    with pytest.raises(Unavailable, match="model 'm' is still loading; try again"):
        remote.replicas("m")
    with pytest.raises(UnknownModel, match="there is no model 'n'; the models are m"):
        remote.replicas("n")
    remote.draining = True
    with pytest.raises(Unavailable, match="shutting down"):
        remote.replicas("m")
    assert remote.why_not_ready() == "the service is shutting down"


async def test_models_are_added_and_removed(pair: tuple[FakeBackend, RemoteBackend]) -> None:
    fake, remote = pair
    entry = ModelEntry(name="n", source="torchvision:resnet18", weights="none")
    await remote.add(entry, most=2)
    assert remote.names == ["m", "n"], "it is known when the call returns"
    assert fake.added == [(entry, 2)]
    in_work = [2]
    removing = asyncio.create_task(remote.remove("n", lambda: in_work[0]))
    await stays_async(lambda: not removing.done(), 0.2)  # images of it are in work here
    in_work[0] = 0
    await asyncio.wait_for(removing, 5)
    assert remote.names == ["m"]
    with pytest.raises(UnknownModel, match="there is no model 'n'"):
        await remote.remove("n")


async def test_a_removal_goes_on_when_its_caller_ends(tmp_path: Path) -> None:
    """Half of one would leave a model that neither answers nor can be removed."""
    async with served(tmp_path, "m", "other") as fake:
        async with reached(tmp_path) as remote:
            fake.done.set()
            await asyncio.wait_for(remote.loaded, 5)
            removing = asyncio.create_task(remote.remove("m", lambda: 1))
            await until_async(lambda: "m" in fake.leaving)
        with pytest.raises(Unavailable):
            await removing
        await until_async(lambda: list(fake.models) == ["other"])


async def test_a_result_that_cannot_be_sent_is_a_problem(
    pair: tuple[FakeBackend, RemoteBackend],
) -> None:
    fake, remote = pair
    fake.models["m"].value = threading.Lock()  # no process can send it
    async with asyncio.timeout(5):
        with pytest.raises(InternalError):
            await remote.replicas("m").ask(ASKED)


async def test_requests_in_flight_see_the_end_of_the_engine_and_later_ones_the_next(
    tmp_path: Path,
) -> None:
    async with reached(tmp_path) as remote:
        with pytest.raises(Unavailable, match="the engine is starting; try again"):
            remote.replicas("m")
        assert not remote.ready
        for life in range(3):
            async with served(tmp_path) as fake:
                await until_async(lambda: remote.names)
                fake.done.set()
                await until_async(lambda: remote.ready)
                await asyncio.wait_for(asyncio.shield(remote.loaded), 5)
                model = remote.replicas("m")
                await model.ask(ASKED)
                fake.models["m"].going_on.clear()
                asking = asyncio.create_task(model.ask(ASKED))
                await until_async(lambda fake=fake: len(fake.models["m"].asked) == 2)  # type: ignore[misc]
            with pytest.raises(Unavailable, match="the engine ended") as caught:
                await asyncio.wait_for(asking, 5)
            assert caught.value.blamed == "process"
            assert caught.value.retry_after == 1
            with pytest.raises(Unavailable, match="the engine is starting; try again"):
                remote.replicas("m")
            assert remote.names == ["m"], f"the names are known, life {life}"
            with pytest.raises(UnknownModel):
                remote.replicas("n")


async def test_who_sends_what_is_no_message_is_cut_off_alone(
    pair: tuple[FakeBackend, RemoteBackend], tmp_path: Path
) -> None:
    for payload in (b"nonsense", pickle.dumps(print), b""):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(stranger, str(tmp_path / "engine"))
            await loop.sock_sendall(stranger, LENGTH.pack(len(payload)) + payload)
            async with asyncio.timeout(5):
                while await loop.sock_recv(stranger, 65536):
                    pass
    await pair[1].replicas("m").ask(ASKED)


async def test_nothing_stays_when_both_sides_are_left(tmp_path: Path) -> None:
    before = asyncio.all_tasks()
    async with served(tmp_path) as fake:
        async with reached(tmp_path) as remote:
            fake.done.set()
            await asyncio.wait_for(remote.loaded, 5)
            fake.models["m"].going_on.clear()
            asking = asyncio.create_task(remote.replicas("m").ask(ASKED))
            await until_async(lambda: fake.models["m"].asked)
        with pytest.raises(Unavailable):
            await asking
        await until_async(lambda: fake.models["m"].cancelled)
    await until_async(lambda: asyncio.all_tasks() == before)
    with pytest.raises(RuntimeError):
        async with served(tmp_path), reached(tmp_path):
            raise RuntimeError
    await until_async(lambda: asyncio.all_tasks() == before)
