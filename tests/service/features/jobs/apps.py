"""The app with a small model, its jobs in a test's folder, and what tests ask of it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from service.app import create_app
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests import waiting
from tests.service.conftest import wait_until_ready


@contextmanager
def app_at(folder: Path, **settings: Any) -> Iterator[TestClient]:
    """One image takes a tenth of a second."""
    entry = ModelEntry(
        name="slow",
        source="factory:tests.zoo.factories:bulky",
        weights="none",
        input_size=8,
        max_batch=1,
        # Else these are chosen by time, and last bits differ with them.
        layout="channels-last",
        runtime="torch",
    )
    app = create_app(Settings(jobs=folder, **settings), [entry])
    with TestClient(app, raise_server_exceptions=False) as client:
        wait_until_ready(client)
        yield client


def packed(images: Sequence[bytes]) -> bytes:
    """As a zip, named by their numbers."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number, image in enumerate(images):
            archive.writestr(f"{number}.png", image)
    return file.getvalue()


Client = TestClient | httpx2.Client


def post(client: Client, images: Sequence[bytes], query: str = "", **headers: str) -> Any:
    sent = {"Content-Type": "application/zip", **headers}
    return client.post(f"/v1/jobs{query}", content=packed(images), headers=sent)


def job_of(answer: Any) -> str:
    """The address of the job that was accepted."""
    assert answer.status_code == 202, answer.text
    location = answer.headers["location"]
    assert isinstance(location, str)
    return location


def until(
    client: Client, job: str, wanted: Callable[[Any], bool], seconds: float = 90
) -> dict[str, Any]:
    """The job's document as soon as it is as wanted."""

    def asked() -> list[dict[str, Any]]:
        return [document for document in [client.get(job).json()] if wanted(document)]

    return waiting.until(asked, seconds)[0]


def until_done(client: Client, job: str, seconds: float = 90) -> dict[str, Any]:
    return until(client, job, lambda document: document["state"] == "done", seconds)


def lines(client: Client, job: str) -> list[dict[str, Any]]:
    text = client.get(f"{job}/results").text
    return [json.loads(line) for line in text.splitlines()]


def answers(client: Client, job: str) -> dict[str, Any]:
    """Item → all that is said of it but when; cursors are checked to have no gap."""
    found = lines(client, job)
    assert [line.pop("cursor") for line in found] == list(range(1, len(found) + 1))
    named = {line["item"]: line for line in found}
    assert len(named) == len(found)
    return named
