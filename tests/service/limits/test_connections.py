"""The number of connections, and the files that a process may open."""

from __future__ import annotations

import resource
from collections.abc import Callable

import pytest

from service.limits.connections import most_connections, raise_file_limit
from service.settings import Settings


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], list[tuple[int, int]]]:
    """Pretends that the process may open so many files, and notes what it sets."""
    limits: list[tuple[int, int]] = []

    def pretend(soft: int, hard: int) -> list[tuple[int, int]]:
        limits.append((soft, hard))
        return limits

    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: limits.append(pair))
    return pretend


def test_connections_leave_files_for_probes(
    files: Callable[[int, int], object], caplog: pytest.LogCaptureFixture
) -> None:
    files(4096, 4096)
    assert most_connections(Settings()) == 1000
    raise_file_limit(Settings())
    assert not caplog.records
    files(1024, 1024)
    assert most_connections(Settings()) == 896
    raise_file_limit(Settings())
    assert "it takes 896 connections and not the 1000" in caplog.text
    files(64, 64)
    assert most_connections(Settings()) == 16
    files(resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert most_connections(Settings()) == 1000


def test_the_limit_of_files_is_raised_to_what_is_allowed(
    files: Callable[[int, int], list[tuple[int, int]]],
) -> None:
    noted = files(1024, 1_000_000)
    raise_file_limit(Settings())
    assert noted[-1] == (1_000_000, 1_000_000)
    raise_file_limit(Settings())
    assert len(noted) == 2
