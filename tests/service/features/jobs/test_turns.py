"""Whose items come next."""

from __future__ import annotations

import re
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.features.jobs.runner import AT_ONCE, LEASE_ITEMS
from tests.service.conftest import encoded, noise
from tests.service.features.jobs.forms import accepted, ended, form_of, results, until_settled

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


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_left")
def test_items_of_many_passes_end_one_after_the_other(jobs: TestClient) -> None:
    """So that there is progress from the first, and a kill costs few passes."""

    def steps() -> int:
        told = re.search(
            r'^gradcam_batch_size_count\{model="slow"\} (\d+)', jobs.get("/metrics").text, re.M
        )
        assert told
        return int(told[1])

    count = 6
    form = form_of("zip", {f"{at}.png": SMALL for at in range(count)})
    query = {"model": "slow", "size": "layer", "method": "scorecam", "budget": "3"}
    before = steps()
    job = accepted(jobs.post("/v1/jobs", params=query, **form))["id"]
    document = until_settled(jobs, job, 1)
    first = steps() - before
    assert document["counts"]["left"] > 0
    assert document["eta_seconds"] > 0
    assert ended(jobs, job)["counts"]["done"] == count
    all_ = steps() - before
    assert all_ >= 4 * count
    assert first < all_ / 2  # in turns, it would have been nearly all
    assert [line["cursor"] for line in results(jobs, job).values()] == [*range(1, count + 1)]
