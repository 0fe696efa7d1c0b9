"""The protocol works on both event loops: uvloop's, which serves, and asyncio's, on Windows."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio", marks=pytest.mark.slow),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param
