"""A batcher without a timer: while one batch runs, the items of the next batch gather.

    async with Batcher(run, max_batch=16, max_queue=256) as batcher:
        outcome = await batcher.submit(item)

A single item runs at once if the worker is idle; under load, batches grow by themselves. While a
device computes one batch, the worker begins the next one, if that is no smaller: the device has no
pause, and a batch that could still grow waits. The module depends on neither torch nor HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import perf_counter
from traceback import clear_frames
from typing import Generic, TypeVar

from cam.counts import counted
from service.backend.outcome import Outcome
from service.core.pool import Priority

COURTESY_SECONDS = 0.03
"""Target duration of a background batch while interactive items are expected."""
COMPANY_SECONDS = 5.0
"""Seconds after the last interactive item during which another one is expected at any moment."""
PATIENCE_SECONDS = 1.0
"""Seconds after which waiting background items get one batch although interactive items wait."""
STANDING_BATCHES = 2
"""Interactive items that wait for more batches than this, and longer than the patience, wait too
long."""
STANDING_SECONDS = 0.1
"""Least time for which all items have to wait too long before the newest are taken first."""
MEMORY = 8
"""Number of batches over which the run time of one item is averaged, exponentially weighted."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatcherFull(Exception):
    """The queue holds the maximum number of items."""


class BatcherClosed(Exception):
    """The batcher has been closed, or its worker has ended.

    Attributes:
        blamed: whether the worker was abandoned while it processed the item's batch.
    """

    def __init__(self, words: str, *, blamed: bool = False) -> None:
        super().__init__(words)
        self.blamed = blamed


Given = TypeVar("Given")
Later = Callable[[], Sequence[Result | Exception]]
"""Waits for the device that computes a batch; returns the results."""


@dataclass(frozen=True, eq=False)
class _Entry(Generic[Item, Result]):
    item: Item
    future: asyncio.Future[Outcome[Result]]
    submitted: float
    begun: float
    """Time at which the first step of the item's work was submitted."""
    key: Hashable
    cost: Hashable
    background: bool


Entries = list[_Entry[Item, Result]]


class Batcher(Generic[Item, Result]):
    """Gathers items into batches and runs one batch at a time, in a single thread of its own.

    Args:
        run: takes a batch and returns a result for each item, in order, or a `Later`, which is
            called in a second thread. An exception that it *returns* for an item fails only that
            item. If it *raises*, the batch is halved and tried again, down to the single item that
            causes the exception.
        key: returns an item's key, when it is submitted; only items with equal keys share a batch.
        cost: returns an item's cost class. Classes with waiting items take turns, whatever the
            number of their items, so that cheap items do not wait for all the expensive items
            that were queued before them.
        priority: returns an item's priority. Background items run when no interactive items wait,
            and else in one batch every `PATIENCE_SECONDS`. The item whose work began first goes
            first, so that work of many steps ends one after the other: unfinished work is lost
            when the process is killed. For `COMPANY_SECONDS` after an interactive item, background
            batches are small enough to take about `COURTESY_SECONDS`.
        max_batch: largest number of items in a batch; `interactive_batch` may set a smaller one for
            interactive items.
        max_queue: largest number of waiting items.
        patience: seconds that interactive items may always wait, before they wait too long.
        name: name of the thread.
        prepare: called first in the thread.
        failed: returns what the caller of an item that failed gets in the place of an exception.

    Interactive items are taken in the order in which they came. If even the newest item of each
    batch has waited too long for some time, so that the queue never drains (CoDel's standing
    delay), the newest are taken first: those have callers who still wait (adaptive LIFO). This ends
    as soon as a batch has not waited too long, so the others have their turn.

    An item whose future was cancelled is dropped when a batch is formed. Leaving the `async with`
    block refuses new items, finishes the queued items and ends the thread.
    """

    def __init__(
        self,
        run: Callable[[list[Item]], Sequence[Result | Exception] | Later[Result]],
        *,
        key: Callable[[Item], Hashable] = lambda item: None,
        cost: Callable[[Item], Hashable] = lambda item: None,
        priority: Callable[[Item], Priority] = lambda item: "interactive",
        max_batch: int,
        max_queue: int,
        patience: float = 0.0,
        name: str = "batcher",
        prepare: Callable[[], None] | None = None,
        failed: Callable[[Item, Exception], Exception] = lambda item, error: error,
    ) -> None:
        self._run = run
        self._failed = failed
        self._key = key
        self._cost = cost
        self._turns: dict[Hashable, int] = {}
        self._priority = priority
        self._item_seconds = COURTESY_SECONDS
        self._last_other = -COMPANY_SECONDS
        self._last_background = 0.0
        self._too_long_since: float | None = None
        """Time since which each interactive batch has waited too long; None if the last has not."""
        self._max_batch = max_batch
        self.interactive_batch = max_batch
        """Largest number of interactive items in a batch."""
        self._max_queue = max_queue
        self._patience = patience
        self._name = name
        self._prepare = prepare
        self._under_way: deque[Entries[Item, Result]] = deque()
        """The batches that run or that the device computes, at most two."""
        self._finishing: asyncio.Task[None] | None = None
        """Waits for the older one of these."""
        self._last_end = 0.0
        self._started: float | None = None
        self._queue: deque[_Entry[Item, Result]] = deque()
        self._wake = asyncio.Event()
        self._closing = self._abandoned = False
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Batcher[Item, Result]:
        self._executor = ThreadPoolExecutor(
            1, thread_name_prefix=self._name, initializer=self._prepare
        )
        self._finisher = ThreadPoolExecutor(
            1, thread_name_prefix=f"{self._name}, answers", initializer=self._prepare
        )
        self._worker = asyncio.create_task(self._work(), name=self._name)
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._closing = True
        self._wake.set()
        try:
            if self._worker and not self._abandoned:
                await asyncio.wait([self._worker])  # does not cancel the worker if cancelled
                if not self._abandoned:
                    self._worker.result()
        finally:
            self._shut_down()

    def _shut_down(self) -> None:
        for executor in (self._executor, self._finisher):
            executor.shutdown(wait=False, cancel_futures=True)

    @property
    def alive(self) -> bool:
        """Whether the batcher accepts items and its worker runs."""
        return self._worker is not None and not self._worker.done() and not self._closing

    @property
    def running_seconds(self) -> float:
        """Seconds since the oldest batch under way started, or the one before it ended; 0 if there
        is none."""
        return 0.0 if self._started is None else perf_counter() - self._started

    async def abandon(self) -> None:
        """Abandon the thread, even in the middle of a batch. All waiting items fail with
        `BatcherClosed`."""
        self._closing = self._abandoned = True
        if self._worker:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        self._shut_down()

    def __len__(self) -> int:
        """Return the number of waiting items."""
        return sum(not entry.future.cancelled() for entry in self._queue)

    @property
    def load(self) -> int:
        """Number of items that wait or run."""
        return len(self) + sum(map(len, self._under_way))

    def submit(self, item: Item, *, begun: float | None = None) -> asyncio.Future[Outcome[Result]]:
        """Queue an item at once. Await the returned future for its outcome; cancel the future to
        withdraw the item.

        Args:
            begun: time of `time.perf_counter` at which the work began that the item continues, or
                None. An item that continues work is queued even if the queue is full.

        Raises:
            BatcherFull: if the queue is full, or what `failed` returns for it; as for
            BatcherClosed: if the batcher is closed or its worker has ended.
        """
        if not self.alive:
            raise self._failed(item, BatcherClosed("the batcher is closed"))
        if len(self._queue) >= self._max_queue:
            self._queue = deque(e for e in self._queue if not e.future.cancelled())
        if len(self._queue) >= self._max_queue and begun is None:
            waiting = counted(len(self._queue), "item is", "items are")
            raise self._failed(item, BatcherFull(f"{waiting} waiting"))
        future: asyncio.Future[Outcome[Result]] = asyncio.get_running_loop().create_future()
        now = perf_counter()
        background = self._priority(item) == "background"
        begun = now if begun is None else begun
        entry = _Entry(item, future, now, begun, self._key(item), self._cost(item), background)
        self._queue.append(entry)
        if not background:
            self._last_other = now
        self._wake.set()
        return future

    async def _work(self) -> None:
        try:
            while True:
                if batch := self._next_batch():
                    await self._process(batch)
                    if batch[0].background:
                        await asyncio.sleep(0)  # its caller submits the next step, which goes first
                elif self._closing and not self._under_way:
                    return
                else:
                    self._wake.clear()
                    await self._wake.wait()
        finally:  # if the worker is cancelled, no item is left without a result
            if self._finishing:
                self._finishing.cancel()
            for batch in list(self._under_way):
                self._end(batch)
            for entry in self._queue:
                self._settle(entry, BatcherClosed("the worker has ended"), 0, 0)
            self._queue.clear()

    def _begin(self, batch: Entries[Item, Result]) -> float:
        now = perf_counter()
        if not self._under_way:
            self._started = now
        self._under_way.append(batch)
        return now

    def _end(self, batch: Entries[Item, Result]) -> None:
        """Give each entry of a batch a result, unless it has one. In a method of its own, because
        the loop's variable would keep the last item in memory until the next one comes."""
        for entry in [each for each in batch if not each.future.done()]:
            ended = BatcherClosed("the worker has ended", blamed=self._abandoned)
            self._settle(entry, ended, 0, len(batch))
        if batch in self._under_way:
            self._under_way.remove(batch)
        self._started = perf_counter() if self._under_way else None
        self._wake.set()

    def _next_batch(self) -> list[_Entry[Item, Result]]:
        """Remove and return the oldest entry of the cost class whose turn it is, together with
        other entries of the same key; nothing if the device computes a larger batch."""
        self._queue = deque(entry for entry in self._queue if not entry.future.cancelled())
        now = perf_counter()
        interactive: list[_Entry[Item, Result]] = []
        background: list[_Entry[Item, Result]] = []
        for entry in self._queue:
            (background if entry.background else interactive).append(entry)
        candidates, most = interactive, self.interactive_batch
        if background and (not interactive or self._is_starved(background[0], now)):
            candidates = sorted(background, key=lambda entry: entry.begun)
            most = self._courteous
        elif self._stands(now):
            candidates.reverse()
        if not candidates:
            return []
        waiting = dict.fromkeys(entry.cost for entry in candidates)
        cost = min(waiting, key=lambda class_: self._turns.get(class_, 0))
        oldest = next(entry for entry in candidates if entry.cost == cost)
        alike = (entry for entry in candidates if entry.key == oldest.key)
        batch = list(islice(alike, most))
        if self._under_way and len(batch) < min(len(self._under_way[-1]), most):
            return []
        self._turns[cost] = max(self._turns.values(), default=0) + 1
        if candidates is not interactive:
            self._last_background = now
        taken = set(map(id, batch))
        self._queue = deque(entry for entry in self._queue if id(entry) not in taken)
        if candidates is interactive:
            self._judge(min(now - entry.submitted for entry in batch), now)
        return batch

    def _is_starved(self, oldest: _Entry[Item, Result], now: float) -> bool:
        """Return whether background items have waited for their batch long enough."""
        return now - max(oldest.submitted, self._last_background) > PATIENCE_SECONDS

    @property
    def _standing_seconds(self) -> float:
        """Longest time that interactive items should wait."""
        batches = STANDING_BATCHES * self._item_seconds * self.interactive_batch
        return max(batches, self._patience)

    def _stands(self, now: float) -> bool:
        """Return whether items have waited too long for some time."""
        long = max(self._standing_seconds, STANDING_SECONDS)
        return self._too_long_since is not None and now - self._too_long_since >= long

    def _judge(self, waited: float, now: float) -> None:
        """Record how long the newest item of an interactive batch has waited."""
        if waited <= self._standing_seconds:
            self._too_long_since = None
        elif self._too_long_since is None:
            self._too_long_since = now

    @property
    def _courteous(self) -> int:
        """Largest number of background items that a batch may hold now."""
        if perf_counter() - self._last_other > COMPANY_SECONDS:
            return self._max_batch
        return min(max(int(COURTESY_SECONDS / self._item_seconds), 1), self._max_batch)

    async def _process(self, batch: Entries[Item, Result]) -> None:
        """Run a batch, and deliver its results, or have them delivered once the device is done."""
        batch = [entry for entry in batch if not entry.future.done()]
        if not batch:
            return
        started = self._begin(batch)
        handed_over = False
        try:
            attempt = partial(self._run, [entry.item for entry in batch])
            results = await self._in_thread(self._executor, attempt, len(batch))
            if isinstance(results, Sequence | Exception):
                await self._deliver(batch, results, started)
            else:
                if self._finishing:  # of the batch before
                    await asyncio.wait([self._finishing])
                finishing = self._finish(batch, results, started)
                self._finishing = asyncio.create_task(finishing, name=f"{self._name}, answers")
                handed_over = True
        finally:
            if not handed_over:
                self._end(batch)

    async def _finish(
        self, batch: Entries[Item, Result], later: Later[Result], started: float
    ) -> None:
        try:
            results = await self._in_thread(self._finisher, later, len(batch))
            await self._deliver(batch, results, started)
        finally:
            self._end(batch)

    async def _in_thread(
        self, executor: ThreadPoolExecutor, function: Callable[[], Given], count: int
    ) -> Given | Exception:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, self._caught, function, count)

    async def _deliver(
        self,
        batch: Entries[Item, Result],
        results: Sequence[Result | Exception] | Exception,
        started: float,
    ) -> None:
        """Give each entry its result. A batch that failed is halved and tried again."""
        now = perf_counter()
        took = (now - max(started, self._last_end)) / len(batch)
        self._item_seconds += (took - self._item_seconds) / MEMORY
        self._last_end = now
        if not isinstance(results, Exception):
            for entry, result in zip(batch, results, strict=True):
                self._settle(entry, result, started, len(batch))
        elif len(batch) == 1:
            self._settle(batch[0], results, started, 1)
        else:
            middle = len(batch) // 2
            for half in (batch[:middle], batch[middle:]):
                if waiting := [entry for entry in half if not entry.future.done()]:
                    started = perf_counter()
                    whole = partial(self._whole, [entry.item for entry in waiting])
                    results = await self._in_thread(self._executor, whole, len(waiting))
                    await self._deliver(waiting, results, started)

    def _whole(self, items: list[Item]) -> Sequence[Result | Exception]:
        """Run a batch to its end."""
        given = self._run(items)
        return given if isinstance(given, Sequence) else given()

    @staticmethod
    def _caught(function: Callable[[], Given], count: int) -> Given | Exception:
        """Call a function in a thread. Exceptions are returned, not raised: a future cannot hold
        StopIteration, and an exception such as SystemExit would end the event loop."""
        try:
            results = function()
        except StopIteration as error:
            return RuntimeError(f"a StopIteration escaped: {error}")
        except Exception as error:
            clear_frames(error.__traceback__)  # or else it keeps the batch's tensors
            return error
        except BaseException as error:
            return RuntimeError(f"a {type(error).__name__} escaped: {error}")
        if isinstance(results, Sequence) and len(results) != count:
            return RuntimeError(f"{counted(len(results), 'result')} for a batch of {count}")
        return results

    def _settle(
        self, entry: _Entry[Item, Result], result: Result | Exception, started: float, size: int
    ) -> None:
        if entry.future.done():
            return
        if isinstance(result, Exception):
            entry.future.set_exception(self._failed(entry.item, result))
            return
        ran = perf_counter() - started
        entry.future.set_result(Outcome(result, started - entry.submitted, ran, size))
