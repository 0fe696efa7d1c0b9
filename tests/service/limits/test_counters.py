"""Counts of several processes."""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.core.errors import Overloaded, QueueFull
from service.core.metrics import Metrics
from service.limits.admission import Admission
from service.limits.body_budget import BodyBudget
from service.limits.counters import CELLS, NAMES, SharedCounts, table
from service.limits.pixel_budget import PixelBudget
from tests.waiting import stays_async, until_async

TIMES = 2000


@pytest.fixture
def shared() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder, table(Path(folder, "counts"), 3) as file:
        yield file
        assert file.exists()
    assert not file.exists()


def test_a_number_is_the_sum_of_what_all_processes_add(shared: Path) -> None:
    one, other = SharedCounts(shared, 0), SharedCounts(shared, 1)
    assert one.total("images") == 0
    assert one.add("images", 3) == 3
    assert other.add("images", 4) == 7
    assert other.add("bytes", 10) == 10
    assert one.total("images") == 7
    assert one.total("bytes") == 10
    assert one.add("images", -3) == 4


def test_the_row_of_a_dead_process_is_cleared(shared: Path) -> None:
    one, other = SharedCounts(shared, 0), SharedCounts(shared, 1)
    one.add("images", 3)
    other.add("images", 4)
    SharedCounts(shared, 1).clear()
    assert one.total("images") == 3
    assert SharedCounts(shared, 1).add("images", 1) == 4


def test_a_read_takes_no_column_and_a_column_of_zero_is_used_again(shared: Path) -> None:
    one, other = SharedCounts(shared, 0), SharedCounts(shared, 1)
    for number in range(10 * NAMES):
        assert one.total(f"asked {number}") == 0
    for number in range(NAMES):
        one.add(f"name {number}", 1)
    assert other.total("name 5") == 1
    with pytest.raises(OverflowError, match=f"{NAMES} names are counted, and 'one more'"):
        other.add("one more", 1)
    one.add("name 5", -1)
    assert other.add("one more", 2) == 2
    assert one.total("name 5") == 0
    assert one.total("one more") == 2


def test_all_processes_write_the_cells_of_a_name(shared: Path) -> None:
    one, other = SharedCounts(shared, 0), SharedCounts(shared, 1)
    one.publish("limit", 1)
    first, second = one.cells("limit"), other.cells("limit")
    assert first[0] == first[CELLS - 1] == 0
    first[0] = 2.5
    second[CELLS - 1] = 7
    assert (second[0], first[CELLS - 1]) == (2.5, 7)
    assert one.cells("another")[0] == 0
    SharedCounts(shared, 1).clear()
    assert first[0] == 2.5, "a process that dies takes nothing with it"
    one.publish("limit", 0)
    for number in range(NAMES):
        other.add(f"name {number}", 1)
    assert all(other.cells(f"name {number}")[0] == 0 for number in range(NAMES))


def _count(file: Path, row: int) -> None:
    counts = SharedCounts(file, row)
    for _ in range(TIMES):
        counts.add("images", 1)
    for _ in range(TIMES - 1):
        counts.add("images", -1)


def test_no_addition_is_lost_between_processes(shared: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_count, args=(shared, row)) for row in (0, 1)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
        assert each.exitcode == 0
    assert SharedCounts(shared, 2).total("images") == 2


def test_the_room_of_a_model_is_for_all_processes(shared: Path) -> None:
    one, other = (
        Admission(4, metrics=Metrics(), counts=SharedCounts(shared, row)) for row in (0, 1)
    )
    with one.admit("m", 3, costly=0):
        assert other.in_work("m") == 3
        assert [other.at_rest] == [False]
        with (
            pytest.raises(QueueFull, match="3 images are in progress for model 'm'; at most 4"),
            other.admit("m", 2, costly=0),
        ):
            pass
        assert other.in_work("m") == 3, "a refused request leaves nothing behind"
        with other.admit("m", 1, costly=0), other.admit("n", 4, costly=0):
            assert one.in_work("m") == 4
            with pytest.raises(QueueFull, match="4 images are in progress for model 'm'"):
                one.enter("m")
            one.enter("none").leave()
    assert other.at_rest
    assert other.lately(10)
    with one.admit("m", 5, costly=0), pytest.raises(QueueFull):
        other.check("m", 1)


def test_bodies_are_counted_for_all_processes(shared: Path) -> None:
    one, other = (BodyBudget(100, Metrics(), SharedCounts(shared, row)) for row in (0, 1))
    with one.share() as hold, other.share() as also:
        hold(60)
        also(40)
        with pytest.raises(Overloaded):
            also(41)
    with other.share() as hold:
        hold(100)


@pytest.mark.anyio
async def test_pixels_are_counted_for_all_processes(shared: Path) -> None:
    one, other = (
        PixelBudget(pixels=800, threads=1, largest=60, counts=SharedCounts(shared, row))
        for row in (0, 1)
    )
    order: list[str] = []

    async def photo(budget: PixelBudget, pixels: int, name: str) -> None:
        async with budget.hold(pixels):
            order.append(name)

    with one, other:
        async with one.hold(90):
            await asyncio.wait_for(photo(other, 90, "beside it"), 5)
            waiting = asyncio.create_task(photo(other, 99, "after it"))
            async with one.hold(20):
                # It looks for room several times: 199 of 200 pixels are held, and 99 do not fit.
                await stays_async(lambda: order == ["beside it"], 0.05)
        await asyncio.wait_for(waiting, 5)
    assert order == ["beside it", "after it"]


@pytest.mark.anyio
async def test_a_process_with_a_backlog_leaves_room_for_the_others(shared: Path) -> None:
    budgets = [
        PixelBudget(pixels=400, threads=1, largest=50, counts=SharedCounts(shared, row))
        for row in (0, 1)
    ]
    done = [0, 0]

    async def stream(row: int) -> None:
        while True:
            async with budgets[row].hold(50):
                await asyncio.sleep(0.001)
            done[row] += 1

    with budgets[0], budgets[1]:
        streams = [asyncio.create_task(stream(row)) for row in (0, 0, 0, 0, 0, 1, 1, 1)]
        await until_async(lambda: sum(done) >= 1000, 30)
        for each in streams:
            each.cancel()
        await asyncio.wait(streams)
    assert max(done) < 5 * min(done)
    counts = SharedCounts(shared, 0)
    names = ("pixels of interactive small photos", "oldest of interactive small photos")
    assert [counts.total(name) for name in names] == [0, 0]
