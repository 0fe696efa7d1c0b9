"""The forms in which a job may be brought, and what comes of it."""

from __future__ import annotations

import base64
import io
import json
import os
import sqlite3
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from service.features.jobs.settings import FILE
from tests.waiting import until

NDJSON = {"Content-Type": "application/x-ndjson"}
ZIP = {"Content-Type": "application/zip"}
TAR = {"Content-Type": "application/x-tar"}
GZIP = {"Content-Type": "application/gzip"}
PROBLEM = "application/problem+json"
Images = Mapping[str, bytes]
Request = dict[str, Any]


def inline(data: bytes) -> dict[str, Any]:
    return {"b64": base64.b64encode(data).decode()}


def instances(images: Images) -> list[dict[str, Any]]:
    return [{"id": name, "image": inline(data)} for name, data in images.items()]


def lines(sent: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in sent)


def zipped(images: Images, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in images.items():
            archive.writestr(name, data)
    return file.getvalue()


def tarred(images: Images, mode: Any = "w") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, data in images.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return file.getvalue()


def form_of(kind: str, images: Images) -> Request:
    """What to post, without parameters."""
    if kind == "json":
        return {"json": {"instances": instances(images)}}
    if kind == "ndjson":
        return {"content": lines(instances(images)), "headers": NDJSON}
    if kind == "form":
        return {"files": [("image", (name, data)) for name, data in images.items()]}
    if kind == "zip":
        return {"content": zipped(images), "headers": ZIP}
    if kind == "tar":
        return {"content": tarred(images), "headers": TAR}
    return {"content": tarred(images, "w:gz"), "headers": GZIP}


def raw_form(parts: Sequence[tuple[str, bytes]], end: bytes = b"--line--\r\n") -> Request:
    """A form of parts with these dispositions, as no client of ours would write it."""
    body = b"".join(
        b"--line\r\nContent-Disposition: " + said.encode() + b"\r\n\r\n" + data + b"\r\n"
        for said, data in parts
    )
    headers = {"Content-Type": "multipart/form-data; boundary=line"}
    return {"content": body + end, "headers": headers}


FORMS = ("json", "ndjson", "form", "zip", "tar", "tar.gz")


def accepted(response: Response) -> dict[str, Any]:
    """The document of a job that was taken."""
    assert response.status_code == 202, response.text
    document: dict[str, Any] = response.json()
    assert response.headers["Location"] == f"/v1/jobs/{document['id']}"
    assert 1 <= int(response.headers["Retry-After"]) <= 60
    return document


def ended(client: TestClient, job: str, seconds: float = 60) -> dict[str, Any]:
    """The document of a job, as soon as it is done or cancelled."""

    def asked() -> dict[str, Any] | None:
        response = client.get(f"/v1/jobs/{job}")
        document: dict[str, Any] = response.json()
        if document["state"] in ("done", "cancelled"):
            assert "Retry-After" not in response.headers
            return document
        assert int(response.headers["Retry-After"]) >= 1
        return None

    document = until(asked, seconds)
    assert document
    return document


def until_settled(client: TestClient, job: str, count: int) -> dict[str, Any]:
    """The document of a job, as soon as so many of its items are done or failed."""

    def settled() -> dict[str, Any] | None:
        document: dict[str, Any] = client.get(f"/v1/jobs/{job}").json()
        counts = document["counts"]
        return document if counts["done"] + counts["failed"] >= count else None

    document = until(settled, 60)
    assert document
    return document


def results(client: TestClient, job: str) -> dict[str, dict[str, Any]]:
    """Each item's line."""
    response = client.get(f"/v1/jobs/{job}/results")
    assert response.status_code == 200, response.text
    read = [json.loads(line) for line in response.text.splitlines()]
    assert [line["cursor"] for line in read] == list(range(1, len(read) + 1))
    assert response.headers["X-Next-Cursor"] == str(len(read))
    return {line["item"]: line for line in read}


def done(client: TestClient, **request: Any) -> dict[str, dict[str, Any]]:
    """Bring a job, wait until it is done, and get its results."""
    job = accepted(client.post("/v1/jobs", **request))["id"]
    assert ended(client, job)["state"] == "done"
    return results(client, job)


def check(response: Response, status: int, kind: str, *words: str, pointer: str = "") -> None:
    """It is the problem that it should be, with a sentence that has the words."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == PROBLEM
    problem = response.json()
    assert problem["type"] == f"urn:gradcam-service:{kind}", problem
    assert problem["status"] == status
    assert problem["error"] == problem["detail"]
    assert problem["title"]
    for word in words:
        assert word in problem["detail"], problem["detail"]
    assert problem.get("pointer", "") == pointer, problem


def files_of(place: Path, job: str | None = None) -> list[Path]:
    """What lies in the folder of jobs: all images and results, or those of one job."""
    found = [
        Path(folder, name)
        for kept in ("blobs", "results", "incoming")
        # A folder that is removed between its listing and its reading has no files; `Path.rglob`
        # would raise.
        for folder, _, names in os.walk(place / kept)
        for name in names
    ]
    return [file for file in found if job is None or job in str(file)]


def states(place: Path) -> dict[str, str]:
    """Of every job that there are rows of."""
    with closing(sqlite3.connect(place / FILE)) as connection:
        return dict(connection.execute("select id, state from jobs"))


def strays(place: Path) -> list[str]:
    """Files and rows of jobs that are not there."""
    files = [str(file.relative_to(place)) for file in files_of(place)]
    with closing(sqlite3.connect(place / FILE)) as connection:
        gone = "select job from items where job not in (select id from jobs)"
        found = [job for (job,) in connection.execute(gone)]
    known = states(place)
    return found + [file for file in files if file.split("/")[1] not in known]
