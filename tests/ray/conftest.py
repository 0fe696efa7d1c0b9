"""One stage for the whole session: Ray takes a minute to start."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.ray.stage import Stage, staged
from tests.service.conftest import cat, photos

with warnings.catch_warnings(), suppress(ImportError):
    warnings.simplefilter("ignore")  # of its own use of pydantic
    import ray.serve  # noqa: F401

__all__ = ["cat", "photos"]


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with staged() as stage:
        yield stage
