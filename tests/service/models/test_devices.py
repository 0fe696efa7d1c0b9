"""Each thread computes with its own cores, and those that are not bound with all of them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from service.loading.devices import bind
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app

Value = TypeVar("Value")
TWO = ModelEntry(
    name="tiny",
    source="factory:tests.zoo.factories:tiny",
    weights="none",
    input_size=32,
    device=["cpu", "cpu"],
)
TASKS = Path("/proc/self/task")
linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads have no affinity")
several_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core is not for two")


def in_a_new_thread(work: Callable[[], Value]) -> Value:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]


def threads_started() -> int:
    """How many threads a matrix product of this thread, its first work, has started: OpenMP keeps
    those of a thread for it alone."""
    earlier = set(TASKS.iterdir())
    matrix = torch.ones(1200, 1200)
    matrix @ matrix
    return len(set(TASKS.iterdir()) - earlier)


def test_a_bound_thread_keeps_its_count_to_itself() -> None:
    before, cores = torch.get_num_threads(), allowed()
    later = in_a_new_thread(torch.get_num_threads)

    def bound() -> tuple[int, list[int]]:
        bind(cores[:1])
        return torch.get_num_threads(), allowed()

    assert in_a_new_thread(bound) == (1, cores[:1])
    assert in_a_new_thread(torch.get_num_threads) == later
    assert in_a_new_thread(allowed) == cores
    assert torch.get_num_threads() == before
    assert allowed() == cores


def test_workers_of_different_counts_at_once() -> None:
    """More cores than there are need no binding to be counted."""
    later = in_a_new_thread(torch.get_num_threads)
    counts = [1, 3, 2, 5]
    together = threading.Barrier(len(counts) + 1, timeout=30)

    def worker(count: int | None) -> list[int]:
        together.wait()
        bind(None if count is None else (allowed() * count)[:count])
        found = [torch.get_num_threads()]
        together.wait()  # all have been bound
        torch.ones(100, 100) @ torch.ones(100, 100)
        return [*found, torch.get_num_threads()]

    with ThreadPoolExecutor(len(counts) + 1) as threads:
        found = list(threads.map(worker, [*counts, None]))
    assert found == [[count, count] for count in [*counts, later]]
    assert in_a_new_thread(torch.get_num_threads) == later


@linux
@several_cores
def test_a_bound_thread_computes_alone_and_another_does_not() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:

        def bound() -> int:
            bind(allowed()[:1])
            return threads_started()

        assert in_a_new_thread(bound) == 0
        assert in_a_new_thread(threads_started) == 1
    finally:
        torch.set_num_threads(before)


@linux
@several_cores
def test_two_engines_leave_the_process_as_it_was() -> None:
    """Of all threads those alone are bound to a share of the cores that compute for an engine."""
    before, cores = torch.get_num_threads(), allowed()
    later = in_a_new_thread(torch.get_num_threads)
    earlier = set(TASKS.iterdir())
    with running_app(Settings(), [TWO]) as client:
        for method in ("gradcam", "rise", "occlusion"):
            answer = client.post(
                f"/v1/models/tiny:explain?target=0&method={method}&budget=20",
                content=encoded(noise(30, 30)),
                headers={"Content-Type": "image/png"},
            )
            assert answer.status_code == 200
        assert in_a_new_thread(torch.get_num_threads) == later
        assert torch.get_num_threads() == before
        shares = []
        for task in set(TASKS.iterdir()) - earlier:
            try:
                share = os.sched_getaffinity(int(task.name))
            except ProcessLookupError:  # a thread that has ended meanwhile
                continue
            if share != set(cores):
                shares.append(share)
        assert 2 <= len(shares) <= len(cores)
        assert set.union(*shares) == set(cores)
    assert in_a_new_thread(torch.get_num_threads) == later
    assert in_a_new_thread(allowed) == cores
