"""The protocol works on both event loops: uvloop's, which serves, and asyncio's, on Windows."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(
    params=[("asyncio", {"use_uvloop": True}), ("asyncio", {"use_uvloop": False})],
    ids=["uvloop", "asyncio"],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param
