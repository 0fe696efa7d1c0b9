"""Whose items come next."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.jobs.runner import AT_ONCE, LEASE_ITEMS
from tests.service.conftest import encoded, noise
from tests.service.jobs.forms import accepted, ended, form_of, until_settled

SMALL = encoded(noise(9, 9))
LARGE = encoded(Image.new("RGB", (2000, 1000)))
"""There is room for six of them at a time."""


@pytest.mark.slow
@pytest.mark.parametrize("photo", [SMALL, LARGE], ids=["places", "room"])
@pytest.mark.usefixtures("nothing_is_left")
def test_a_slow_model_keeps_no_other_waiting(jobs: TestClient, photo: bytes) -> None:
    def post(model: str, count: int) -> str:
        form = form_of("zip", {f"{at}.png": photo for at in range(count)})
        query = {"model": model, "size": "layer"}
        job: str = accepted(jobs.post("/v1/jobs", params=query, **form))["id"]
        return job

    def done(job: str) -> int:
        document: dict[str, Any] = jobs.get(f"/v1/jobs/{job}").json()
        count: int = document["counts"]["done"]
        return count

    slow = post("slow", AT_ONCE + 2 * LEASE_ITEMS)
    until_settled(jobs, slow, 1)
    before = done(slow)
    assert ended(jobs, post("tiny", 10))["counts"]["done"] == 10
    # First come, first served, it would have been some thirty.
    assert done(slow) - before < AT_ONCE - 8
