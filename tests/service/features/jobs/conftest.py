"""One app with jobs for all tests of what a caller sees: the embedded model, and tiny ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from service.app import create_app
from service.models.catalog import EMBEDDED, ModelEntry
from service.settings import Settings
from tests.service.conftest import restarted, wait_until_ready
from tests.service.features.jobs.forms import states, strays
from tests.waiting import until

TINY = ModelEntry(
    name="tiny",
    source="factory:tests.zoo.factories:tiny",
    weights="none",
    input_size=8,
    device="cpu",
    kind="classes",
)
SLOW = ModelEntry(
    name="slow",
    source="factory:tests.zoo.factories:steady",
    weights="none",
    input_size=8,
    max_batch=1,
    device="cpu",
)
MOST_BYTES = 400_000
"""Of one image, and of a body in JSON."""


@contextmanager
def app_with(entries: tuple[ModelEntry, ...], settings: Settings) -> Iterator[TestClient]:
    app = create_app(restarted(settings), entries)
    contract = [
        (re.compile(re.sub(r"\\{[a-z]+\\}", ".+", re.escape(path))), verb, operation["responses"])
        for path, item in app.openapi()["paths"].items()
        for verb, operation in item.items()
    ]

    def look(response: Response) -> None:
        """Whatever is answered is in the contract, and is never our fault."""
        status = response.status_code
        if status == 405:  # of every address, so of none in the contract
            return
        if status >= 400:
            assert status != 500, response.read()
            assert response.headers["Content-Type"] == "application/problem+json"
        path, verb = response.request.url.path, response.request.method.lower()
        said = [each for way, of, each in contract if of == verb and way.fullmatch(path)]
        assert not said or any(str(status) in each for each in said), (verb, path, status)

    with TestClient(app) as client:
        client.event_hooks = {"response": [look]}
        wait_until_ready(client)
        yield client


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the app's jobs."""
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="session")
def jobs(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    inputs = tmp_path_factory.mktemp("inputs")
    settings = Settings(
        jobs=place,
        inputs=inputs,
        input_uris=("memory://shown/*",),
        max_job_items=6000,
        max_job_bytes=20_000_000,
        max_body_bytes=MOST_BYTES,
    )
    with app_with((EMBEDDED, TINY, SLOW), settings) as client:
        client.app.state.inputs = inputs  # type: ignore[attr-defined]
        yield client


@pytest.fixture
def nothing_is_left(jobs: TestClient, place: Path) -> Iterator[None]:
    """Whatever a test brought was accepted and is cancelled now, or has left no trace."""
    known = states(place)
    yield
    now = states(place)
    brought = now.keys() - known.keys()
    assert {now[job] for job in brought} <= {"done", "cancelled", "waiting", "running"}
    for job in brought:
        jobs.delete(f"/v1/jobs/{job}")
    # An item that is being finished has a temporary file for a moment, and then the next one.
    left = {*strays(place)}
    until(lambda: not left.intersection(strays(place)), 10)
