"""Pixels that cross by shared memory: where they lie, what comes back, and that nothing is left."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cam import ClassTarget, Question
from service.backend.work import Explain
from service.core.errors import Unexplainable
from service.models.preprocessing import ModelInput
from service.rpc import client, shared_memory
from service.rpc.client import RemoteBackend
from service.rpc.frames import APART_BYTES, BEHIND, LENGTH, PART, PARTS
from service.rpc.messages import Returned, codec
from service.rpc.shared_memory import PAGE, SIZE, OthersMemory, SharedMemory
from tests.service.rpc.fake import FakeBackend, reached, served
from tests.waiting import settled, until_async

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux alone has such memory"),
]
QUESTION = Question((ClassTarget(1),), "gradcam", ("layer",))


def opened() -> list[str]:
    """The shared memories that this process has open or mapped."""
    links = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing itself
            links.append(str(each.readlink()))
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in links + mapped if "memfd:gradcam" in line]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not opened()


def photo(seed: int, side: int = 96) -> ModelInput:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    return ModelInput.of(pixels)


def test_arrays_lie_beside_each_other_and_their_places_are_used_again() -> None:
    page = memoryview(bytes(PAGE))
    with closing(SharedMemory()) as memory:
        first, second, third = (memory.put(memoryview(bytes([n]) * PAGE)) for n in (1, 2, 3))
        assert (first, second, third, memory.used) == (0, PAGE, 2 * PAGE, 3)
        memory.free(PAGE)
        assert memory.put(memoryview(bytes(PAGE + 1))) == 3 * PAGE  # it needs two pages
        assert memory.put(page) == PAGE
        for begin in (0, 2 * PAGE, PAGE, 3 * PAGE):  # in any order they become one place again
            memory.free(begin)
        assert memory.put(memoryview(bytes(SIZE))) == 0


def test_without_room_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SharedMemory()) as memory:
        assert memory.put(memoryview(bytes(SIZE + 1))) is None
        assert memory.put(memoryview(bytes(SIZE - PAGE))) == 0
        assert memory.put(memoryview(bytes(PAGE + 1))) is None
        assert memory.put(memoryview(bytes(PAGE))) == SIZE - PAGE
        assert memory.put(memoryview(b"x")) is None

    def full(*given: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with closing(SharedMemory()) as memory:
        assert memory.put(memoryview(b"x")) is None
        assert memory.used == 0


def test_it_is_sealed_and_read_through_its_descriptor() -> None:
    with closing(SharedMemory()) as memory:
        begin = memory.put(memoryview(b"pixels"))
        assert begin is not None
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(memory.descriptor, 0)
        with closing(OthersMemory(os.getpid(), memory.descriptor)) as others:
            copied = others.copy(begin, 6)
            memory.free(begin)
            memory.put(memoryview(b"PIXELS"))
            assert copied == b"pixels"
            for place, size in ((-1, 1), (SIZE, 1), (0, SIZE + 1), (2**63, 2**63)):
                with pytest.raises(ValueError, match="do not lie in"):
                    others.copy(place, size)


def test_what_may_become_smaller_is_not_opened(tmp_path: Path) -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    with (tmp_path / "file").open("w+b") as file:
        try:
            os.ftruncate(unsealed, SIZE)
            for descriptor in (unsealed, file.fileno(), 10_000):
                with pytest.raises(OSError, match=r"smaller|Invalid|No such"):
                    OthersMemory(os.getpid(), descriptor)
        finally:
            os.close(unsealed)


def test_nothing_is_left_where_it_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(shared_memory, "mmap", fails)
    with pytest.raises(OSError, match="no memory"):
        SharedMemory()


def test_a_frame_tells_where_its_arrays_lie() -> None:
    array = np.arange(APART_BYTES, dtype=np.uint8)
    with closing(SharedMemory()) as memory:
        frame = codec().frame()
        frame.add(Returned(1, [array, array[:5]]), memory.put)
        payload = b"".join(frame.pieces())[LENGTH.size :]
        assert len(payload) < APART_BYTES
        assert PART.unpack_from(payload, PARTS.size)[1] == BEHIND  # the pickle
        assert PART.unpack_from(payload, PARTS.size + PART.size) == (APART_BYTES, 0)
        with pytest.raises(pickle.UnpicklingError, match="there is none"):
            codec().read(payload)
        with closing(OthersMemory(os.getpid(), memory.descriptor)) as others:
            large, small = codec().read(payload, others.copy)[0].value
    np.testing.assert_array_equal(large, array)
    np.testing.assert_array_equal(small, array[:5])
    assert large.flags.writeable


class Memories(list[SharedMemory]):
    """The memories that clients have made."""

    @property
    def used(self) -> int:
        return self[-1].used


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> Memories:
    made = Memories()

    class Noted(SharedMemory):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(client, "SharedMemory", Noted)
    return made


@pytest.fixture
async def pair(
    tmp_path: Path, memories: Memories
) -> AsyncIterator[tuple[FakeBackend, RemoteBackend]]:
    async with served(tmp_path) as fake, reached(tmp_path) as remote:
        fake.done.set()
        await asyncio.wait_for(remote.loaded, 5)
        yield fake, remote


async def test_pixels_cross_and_make_room_once_they_are_answered(
    pair: tuple[FakeBackend, RemoteBackend], memories: Memories
) -> None:
    fake, remote = pair
    model = fake.models["m"]
    model.going_on.clear()
    photos = [photo(seed) for seed in range(5)]
    asking = [
        asyncio.create_task(remote.replicas("m").ask(Explain(each, (QUESTION,)))) for each in photos
    ]
    await until_async(lambda: len(model.asked) == 5)
    assert memories.used == 5
    model.going_on.set()
    await asyncio.gather(*asking)
    assert memories.used == 0
    for asked, sent in zip(model.asked, photos, strict=True):
        np.testing.assert_array_equal(asked.seen.pixels, sent.pixels)
    model.error = Unexplainable("the map is empty")
    with pytest.raises(Unexplainable):
        await remote.replicas("m").ask(Explain(photo(5), (QUESTION,)))
    assert memories.used == 0


async def test_a_cancelled_call_keeps_its_place_until_the_engine_has_done_with_it(
    pair: tuple[FakeBackend, RemoteBackend], memories: Memories
) -> None:
    """Its memory may not be written again before the engine has read it."""
    fake, remote = pair
    model = fake.models["m"]
    model.going_on.clear()
    ask = remote.replicas("m").ask
    late, early = (asyncio.create_task(ask(Explain(photo(seed), (QUESTION,)))) for seed in (0, 1))
    await settled(1)  # both are sent, and one is taken back before the engine has seen it
    early.cancel()
    await settled(1)
    assert memories.used == 2
    await until_async(lambda: memories.used == 1)
    await until_async(lambda: len(model.asked) >= 1)
    late.cancel()
    await until_async(lambda: memories.used == 0)
    model.going_on.set()
    await ask(Explain(photo(2), (QUESTION,)))
    np.testing.assert_array_equal(model.asked[-1].seen.pixels, photo(2).pixels)


async def test_what_has_no_room_goes_through_the_socket(
    pair: tuple[FakeBackend, RemoteBackend], memories: Memories
) -> None:
    fake, remote = pair
    model = fake.models["m"]
    memories[-1].put(memoryview(bytes(SIZE - PAGE)))
    await remote.replicas("m").ask(Explain(photo(0), (QUESTION,)))
    np.testing.assert_array_equal(model.asked[0].seen.pixels, photo(0).pixels)
    assert memories.used == 1


def unmade() -> SharedMemory:
    raise OSError("this system makes no anonymous files")


def unopened(process: int, descriptor: int) -> Any:
    raise FileNotFoundError("/proc is not mounted")


@pytest.mark.parametrize("broken", ["client.SharedMemory", "server.OthersMemory"])
async def test_without_shared_memory_pixels_go_through_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    replacement = SimpleNamespace(client=unmade, server=unopened)
    monkeypatch.setattr(f"service.rpc.{broken}", getattr(replacement, broken.split(".")[0]))
    async with served(tmp_path) as fake, reached(tmp_path) as remote:
        fake.done.set()
        await asyncio.wait_for(remote.loaded, 5)
        await remote.replicas("m").ask(Explain(photo(0), (QUESTION,)))
        (asked,) = fake.models["m"].asked
        np.testing.assert_array_equal(asked.seen.pixels, photo(0).pixels)


async def test_the_next_engine_is_given_memory_of_its_own(
    tmp_path: Path, memories: Memories
) -> None:
    async with AsyncExitStack() as scope:
        async with served(tmp_path) as fake:
            fake.done.set()
            remote = await scope.enter_async_context(reached(tmp_path))
            await asyncio.wait_for(remote.loaded, 5)
            first = len(opened())
        await until_async(lambda: not remote.ready)
        another = await scope.enter_async_context(served(tmp_path))
        another.done.set()
        await until_async(lambda: remote.ready)
        await remote.replicas("m").ask(Explain(photo(0), (QUESTION,)))
        (asked,) = another.models["m"].asked
        np.testing.assert_array_equal(asked.seen.pixels, photo(0).pixels)
        assert len(memories) == 2
        assert len(opened()) == first
