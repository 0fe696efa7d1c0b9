"""More than is allowed, of anything; nowhere to keep it; and callers who leave in the middle."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from starlette.testclient import TestClient

from service.app import create_app
from service.features.jobs.database_tables import CHUNK, VERSION
from service.features.jobs.settings import FILE
from service.settings import Settings
from tests import waiting
from tests.service.conftest import encoded, noise
from tests.service.features.jobs.conftest import MOST_BYTES, SLOW, TINY, app_with
from tests.service.features.jobs.forms import (
    FORMS,
    NDJSON,
    TAR,
    ZIP,
    accepted,
    check,
    done,
    ended,
    files_of,
    form_of,
    inline,
    lines,
    raw_form,
    results,
    states,
)
from tests.service.live import starting
from tests.waiting import until

DOT = encoded(noise(9, 9))
GOOD = {"image": inline(DOT)}
TINILY = {"model": "tiny"}
LARGE = bytes(MOST_BYTES + 1)

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# Too much


def test_more_items_than_are_allowed(jobs: TestClient) -> None:
    """They are counted as they stream in: a million lines are not waited for."""
    sent = 0

    def stream() -> Iterator[bytes]:
        nonlocal sent
        for at in range(10_000):
            sent += 1
            yield b'{"image": {"path": "%d.png"}}\n' % at

    response = jobs.post("/v1/jobs", content=stream(), headers=NDJSON)
    check(response, 413, "too-many-instances", "more than 6000 instances", "several jobs")
    most = b'{"image": {"path": "x.png"}}\n' * 6000
    job = accepted(jobs.post("/v1/jobs", params=TINILY, content=most, headers=NDJSON))
    assert job["counts"]["total"] == 6000
    assert jobs.delete(f"/v1/jobs/{job['id']}").json()["state"] == "cancelled"


@pytest.mark.parametrize("kind", ["ndjson", "form", "zip", "tar", "tar.gz"])
def test_a_large_image_fails_alone(jobs: TestClient, kind: str) -> None:
    images = {"good.png": DOT, "large.png": LARGE, "other.png": DOT}
    job = accepted(jobs.post("/v1/jobs", params=TINILY, **form_of(kind, images)))["id"]
    ended(jobs, job)
    found = results(jobs, job)
    assert found["large.png"]["problem"]["type"] == "urn:gradcam-service:image-too-large"
    assert f"{MOST_BYTES}" in found["large.png"]["error"]
    assert "error" not in found["good.png"]
    assert "error" not in found["other.png"]


def test_an_image_as_large_as_may_be(jobs: TestClient) -> None:
    """PNG may be followed by anything."""
    image = DOT + bytes(MOST_BYTES - len(DOT))
    for kind in ("ndjson", "form", "zip", "tar"):
        found = done(jobs, params=TINILY, **form_of(kind, {"a.png": image}))
        assert "error" not in found["a.png"], kind


def test_what_is_in_memory_whole_is_small(jobs: TestClient) -> None:
    body = jobs.post("/v1/jobs", **form_of("json", {"a": LARGE}))
    check(body, 413, "body-too-large", f"a job in JSON may have {MOST_BYTES} bytes", "x-ndjson")
    line = lines([{"id": "a", **GOOD}, {"image": inline(LARGE * 2)}])
    long = jobs.post("/v1/jobs", content=line, headers=NDJSON)
    check(long, 413, "body-too-large", f"line 2 has more than the {2 * MOST_BYTES} bytes")
    field = [('form-data; name="target"', b"x" * 1_000_001)]
    check(jobs.post("/v1/jobs", **raw_form(field)), 400, "malformed-request", "'target'", "1000000")
    fields = [('form-data; name="target"', b"x" * 100_000)] * 11
    check(jobs.post("/v1/jobs", **raw_form(fields)), 400, "malformed-request", "1000000 bytes")


def test_a_body_larger_than_a_job_s(jobs: TestClient) -> None:
    told = jobs.post("/v1/jobs", content=bytes(20_000_001), headers=TAR)
    check(told, 413, "body-too-large", "the body has 20000001 bytes; at most 20000000")
    streamed = jobs.post("/v1/jobs", content=(bytes(1_000_000) for _ in range(21)), headers=NDJSON)
    assert streamed.status_code == 413
    streamed = jobs.post("/v1/jobs", content=(bytes(1_000_000) for _ in range(21)), headers=ZIP)
    check(streamed, 413, "body-too-large", "the body is larger; at most 20000000")


@pytest.mark.slow
def test_too_many_jobs(tmp_path: Path) -> None:
    with app_with((SLOW,), Settings(jobs=tmp_path, max_jobs=2)) as client:
        request = form_of("json", {str(at): DOT for at in range(40)})
        named = {**request, "headers": {"Idempotency-Key": "first"}}
        first = accepted(client.post("/v1/jobs", **named))["id"]
        second = accepted(client.post("/v1/jobs", **request))["id"]
        refused = client.post("/v1/jobs", **request)
        check(refused, 429, "too-many-jobs", "2 jobs are unfinished")
        assert int(refused.headers["Retry-After"]) >= 1
        # Who missed the answer still gets it, and nothing more.
        assert accepted(client.post("/v1/jobs", **named))["id"] == first
        client.delete(f"/v1/jobs/{second}")

        def bring(_: int) -> int:
            return client.post("/v1/jobs", **request).status_code

        with ThreadPoolExecutor(6) as pool:  # at the same moment, for one place
            assert sorted(pool.map(bring, range(6))) == [202] + [429] * 5
        assert len(files_of(tmp_path)) < 3 + 20


@pytest.mark.slow
def test_the_disk_s_share_is_used_up(tmp_path: Path) -> None:
    picture = encoded(noise(60, 60))
    quota = 5 * len(picture)
    with app_with((TINY,), Settings(jobs=tmp_path, jobs_bytes=quota)) as client:
        for kind in FORMS:
            request = form_of(kind, {str(at): picture for at in range(6)})
            refused = client.post("/v1/jobs", **request)
            check(
                refused, 507, "insufficient-storage", "all the disk space that is allowed", "delete"
            )
            assert files_of(tmp_path) == []
            assert states(tmp_path) == {}
        named = {**form_of("json", {"a": picture}), "headers": {"Idempotency-Key": "a"}}
        job = accepted(client.post("/v1/jobs", **named))["id"]
        ended(client, job)
        while (refused := client.post("/v1/jobs", **form_of("json", {"b": picture}))).is_success:
            ended(client, refused.json()["id"])
        check(refused, 507, "insufficient-storage")
        # Before the images, or after them, as the sizes of the results have it.
        early, late = "delete a job, or wait until jobs expire", "delete one, or wait until they"
        assert (early in refused.json()["detail"]) != (late in refused.json()["detail"])
        assert accepted(client.post("/v1/jobs", **named))["id"] == job
        for each in client.get("/v1/jobs").json()["jobs"]:
            client.delete(f"/v1/jobs/{each['id']}?purge=true")
        form = form_of("json", {"b": picture})
        waiting.until(lambda: client.post("/v1/jobs", **form).is_success)


# Where jobs cannot be kept


@pytest.fixture
def tiny_catalog(tmp_path: Path) -> str:
    file = tmp_path / "models.toml"
    file.write_text(
        '[[models]]\nname = "tiny"\nsource = "factory:tests.zoo.factories:tiny"\n'
        'weights = "none"\ninput_size = 8\n'
    )
    return str(file)


@pytest.mark.slow
def test_a_database_address_that_cannot_be_used_stops_the_start(
    tmp_path: Path, tiny_catalog: str
) -> None:
    named = {"GRADCAM_JOBS": str(tmp_path), "GRADCAM_MODELS": tiny_catalog}
    with starting(
        GRADCAM_JOBS_DATABASE="mongodb://db/jobs", GRADCAM_LOG_FORMAT="console", **named
    ) as (process, _):
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 2
    assert "gradcam: the database of jobs, mongodb, cannot be used: " in errors
    assert "Traceback" not in errors


def newer(folder: Path) -> str:
    with app_with((TINY,), Settings(jobs=folder)) as client:
        accepted(client.post("/v1/jobs", **form_of("json", {"a": DOT})))
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        connection.execute("update gradcam_meta set version = version + 1")
    return (
        f"the database of jobs, {FILE}, was written by a newer version of the service (its tables "
        f"are of version {VERSION + 1}, these are of version {VERSION})"
    )


def damaged(folder: Path) -> str:
    (folder / FILE).write_bytes(b"no database, but some text" * 99)
    return f"the database of jobs, {FILE}, is damaged: file is not a database"


def foreign(folder: Path) -> str:
    with closing(sqlite3.connect(folder / FILE)) as connection, connection:
        connection.execute("create table jobs (id text, state text, title text)")
    return (
        f"the database of jobs, {FILE}, has a table 'jobs' of another program, without the column "
        "'kind'; "
    )


def tables(folder: Path) -> list[Any]:
    """Of the database, if it is one."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(folder / FILE)) as connection:
        return connection.execute("select name, sql from sqlite_master").fetchall()
    return []


def no_folder(folder: Path) -> str:
    folder.rmdir()
    folder.write_bytes(b"")
    return "the folder of jobs cannot be written: Not a directory"


@pytest.mark.parametrize("by", ["setting", "default"])
@pytest.mark.parametrize("spoil", [no_folder, damaged, foreign, newer])
def test_where_jobs_cannot_be_kept_everything_else_serves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], str],
    by: str,
) -> None:
    """And jobs say what is wrong: to callers without the folder, which the log names."""
    folder = tmp_path / "gradcam" / "jobs"
    folder.mkdir(parents=True)
    said = spoil(folder)
    before = tables(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with app_with((TINY,), Settings(jobs=folder) if by == "setting" else Settings()) as client:
        png = {"Content-Type": "image/png"}
        assert client.get("/readyz").status_code == 200
        assert client.post("/v1/models/tiny:explain", content=DOT, headers=png).status_code == 200
        for verb, path in (
            ("POST", "/v1/jobs"),
            ("GET", "/v1/jobs"),
            ("GET", "/v1/jobs/x/results"),
            ("DELETE", "/v1/jobs/x"),
        ):
            response = client.request(verb, path)
            check(response, 503, "unavailable", "jobs are not available", said)
            assert str(tmp_path) not in response.text
    (line,) = [each for each in caplog.messages if each.startswith("no jobs are taken")]
    assert said in line
    assert str(folder) in line
    assert tables(folder) == before


def test_jobs_are_taken_as_soon_as_their_folder_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.features.jobs.host.AGAIN_SECONDS", 0.05)
    file = tmp_path / "jobs"
    file.write_bytes(b"")
    with app_with((TINY,), Settings(jobs=file)) as client:
        assert client.get("/v1/jobs").status_code == 503
        file.unlink()
        until(lambda: client.get("/v1/jobs").status_code == 200, 10)


# Who leaves in the middle


@pytest.mark.parametrize("kind", [k for k in FORMS if k != "json"])
def test_who_leaves_in_the_middle_of_an_upload_leaves_nothing(
    jobs: TestClient, place: Path, kind: str
) -> None:
    """Thousands of items of it were written already."""
    before = states(place)
    if kind == "ndjson":
        body = b'{"image": {"path": "x.png"}}\n' * (CHUNK + 1)
        content_type = "application/x-ndjson"
    else:
        request = jobs.build_request(
            "POST", "http://localhost", **form_of(kind, {"a": DOT, "b": DOT})
        )
        request.read()
        body, content_type = request.content[:-40], request.headers["Content-Type"]
    seen: list[int] = []

    async def leave() -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": body, "more_body": True},
            {"type": "http.disconnect"},
        ]
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            seen.append(len(files_of(place)))
            return messages.pop(0)

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(dict(message))

        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "path": "/v1/jobs",
            "raw_path": b"/v1/jobs",
            "query_string": b"model=tiny",
            "headers": [(b"content-type", content_type.encode())],
            "root_path": "",
            "scheme": "http",
            "state": {},
        }
        await jobs.app(scope, receive, send)
        return sent

    assert jobs.portal is not None
    assert jobs.portal.call(leave) == []
    assert seen[0] > 0  # it had begun to be kept
    assert states(place) == before


# The contract


@pytest.mark.slow
def test_the_contract_is_one() -> None:
    """That every answer here is in it, `tests.service.features.jobs.conftest` sees to."""
    document = create_app(Settings()).openapi()
    schemathesis.openapi.from_dict(document).validate()
    paths = [path for path in document["paths"] if path.startswith("/v1/jobs")]
    assert paths == [
        "/v1/jobs",
        "/v1/jobs/{job}",
        "/v1/jobs/{job}/events",
        "/v1/jobs/{job}/results",
        "/v1/jobs/{job}/results/{item}",
        "/v1/jobs/{job}/archive",
        "/v1/jobs/{job}/clusters",
    ]
