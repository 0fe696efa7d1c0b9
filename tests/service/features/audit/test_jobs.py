"""Audits over HTTP: jobs whose photos are measured, and their summary and report."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.features.audit.schemas import AuditDocument
from service.features.jobs.database_tables import VERSION
from service.features.jobs.settings import FILE
from service.models.catalog import read_catalog
from service.settings import Settings
from tests.service.features.audit.photos import catalog, photo
from tests.service.features.jobs.conftest import TINY, app_with
from tests.service.features.jobs.forms import (
    NDJSON,
    ZIP,
    ended,
    form_of,
    instances,
    lines,
    until_settled,
    zipped,
)

pytestmark = pytest.mark.contract

COUNT = 20
ASKED = "?model=corner&method=gradcam&method=hirescam&evaluate=deletion"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("audits")
    entries = read_catalog(Path(catalog(folder)))
    with app_with(entries, Settings(jobs=folder / "jobs")) as client:
        yield client


def submitted(
    client: TestClient, count: int = COUNT, query: str = ASKED, key: str | None = None
) -> Any:
    images = {f"{number}.png": photo(number) for number in range(count)}
    return client.post(f"/v1/audits{query}", content=zipped(images), headers=with_key(key))


def with_key(key: str | None) -> dict[str, str]:
    return ZIP if key is None else {**ZIP, "Idempotency-Key": key}


@pytest.fixture(scope="module")
def audit(client: TestClient) -> str:
    """The id of an audit that is done, with one broken photo."""
    images = {f"{number}.png": photo(number) for number in range(COUNT)}
    images["broken.png"] = b"broken"
    answer = client.post(f"/v1/audits{ASKED}", content=zipped(images), headers=ZIP)
    assert answer.status_code == 202, answer.text
    document = answer.json()
    assert answer.headers["location"] == f"/v1/audits/{document['id']}"
    assert (document["kind"], document["counts"]["total"]) == ("audit", COUNT + 1)
    ended(client, document["id"])
    return str(document["id"])


@pytest.mark.slow
def test_an_audit_is_summed_up(client: TestClient, audit: str) -> None:
    document = client.get(f"/v1/audits/{audit}").json()
    assert document["counts"] == {"total": COUNT + 1, "done": COUNT, "failed": 1, "left": 0}
    found = document["audit"]
    assert found["photos"] == COUNT
    assert [each["item"] for each in found["failed"]] == ["broken.png"]
    assert {each["method"] for each in found["arms"]} == {"gradcam", "hirescam"}
    assert found["recommendation"]["method"] == "hirescam"
    assert "looks at one place" in [each["kind"] for each in found["findings"]]
    assert list(found["metrics"]) == ["deletion"]
    assert {"torch", "device", "dtype", "fit"} < found["made_with"].keys()
    assert found["fingerprint"] == client.get("/v1/models/corner").json()["fingerprint"]


@pytest.mark.slow
def test_an_audit_has_a_report(client: TestClient, audit: str) -> None:
    answer = client.get(f"/v1/audits/{audit}/report")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "hirescam@features" in answer.text
    assert "broken.png" in answer.text
    assert "<script" not in answer.text
    refused = client.get(f"/v1/audits/{audit}/report", headers={"Accept": "image/png"})
    assert refused.status_code == 406


@pytest.mark.slow
def test_an_audit_of_broken_photos_has_a_report(client: TestClient) -> None:
    images = {f"{number}.png": b"broken" for number in range(COUNT)}
    job = client.post(f"/v1/audits{ASKED}", content=zipped(images), headers=ZIP).json()["id"]
    ended(client, job)
    page = client.get(f"/v1/audits/{job}/report")
    assert page.status_code == 200
    assert "No photo could be measured. 0.png: " in page.text
    assert "No method can be recommended" in page.text


@pytest.mark.slow
def test_a_summary_has_all_fields_of_its_schema(client: TestClient, audit: str) -> None:
    """Null says that a number does not exist; a field that is left out would break the contract."""
    broken = client.post(
        f"/v1/audits{ASKED}",
        content=zipped({f"{number}.png": b"broken" for number in range(COUNT)}),
        headers=ZIP,
    ).json()["id"]
    ended(client, broken)
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for job in (audit, broken):
        document = client.get(f"/v1/audits/{job}").json()
        assert set(schemas["AuditDocument"]["required"]) <= document.keys()
        assert set(schemas["Audit"]["required"]) <= document["audit"].keys()
        for arm in document["audit"]["arms"]:
            assert set(schemas["ArmSummary"]["required"]) <= arm.keys()
        AuditDocument.model_validate(document)
    assert document["audit"]["recommendation"] is None


@pytest.mark.slow
def test_a_summary_is_computed_once_for_as_many_photos(
    client: TestClient, audit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = client.get(f"/v1/audits/{audit}/report").text
    document = client.get(f"/v1/audits/{audit}").json()

    def again(*arguments: object, **options: object) -> None:
        raise AssertionError("it was computed again")

    monkeypatch.setattr("service.features.audit.stored.summarise", again)
    assert client.get(f"/v1/audits/{audit}/report").text == page
    assert client.get(f"/v1/audits/{audit}").json() == document


@pytest.mark.slow
def test_a_small_job_beside_a_long_audit_has_results_soon(client: TestClient) -> None:
    """An audit leases few photos at a time. Once it had as many as there was room for, and a job
    waited until half of them were measured."""
    audit = submitted(client, 60).json()["id"]
    until_settled(client, audit, 1)
    images = {f"{number}.png": photo(number) for number in range(3)}
    job = client.post("/v1/jobs?model=corner", **form_of("zip", images)).json()["id"]
    before = client.get(f"/v1/jobs/{audit}").json()["counts"]["done"]
    assert ended(client, job)["counts"]["done"] == 3
    after = client.get(f"/v1/jobs/{audit}").json()["counts"]["done"]
    assert after - before <= 8
    client.delete(f"/v1/jobs/{audit}?purge=true")


@pytest.mark.slow
def test_an_audit_is_a_job(client: TestClient, audit: str) -> None:
    assert client.get(f"/v1/jobs/{audit}").json()["kind"] == "audit"
    assert audit in [each["id"] for each in client.get("/v1/jobs").json()["jobs"]]
    lines = client.get(f"/v1/jobs/{audit}/results").text.splitlines()
    assert len(lines) == COUNT + 1
    first = json.loads(lines[0])
    assert {"cursor", "index", "item"} <= first.keys()
    assert client.get(f"/v1/jobs/{audit}/results?maps=false").text.splitlines() == lines
    assert client.get(f"/v1/jobs/{audit}/archive").status_code == 200
    refused = client.get(f"/v1/jobs/{audit}/archive?format=parquet")
    assert refused.status_code == 422
    assert refused.json()["detail"] == (
        f"job {audit} is an audit, which has no maps; /v1/audits/{audit}/report shows it; "
        "a Parquet file holds maps, so take format=zip"
    )
    refused = client.get(f"/v1/jobs/{audit}/clusters")
    assert (refused.status_code, "has no maps" in refused.text) == (404, True)
    picture = client.get(f"/v1/jobs/{audit}/results/0.png", headers={"Accept": "image/png"})
    assert picture.status_code == 406


@pytest.mark.slow
def test_a_job_is_no_audit(client: TestClient) -> None:
    posted = client.post("/v1/jobs?model=corner", **form_of("zip", {"a.png": photo(0)}))
    job = posted.json()["id"]
    assert posted.json()["kind"] == "explain"
    for way in (f"/v1/audits/{job}", f"/v1/audits/{job}/report"):
        answer = client.get(way)
        assert answer.status_code == 404
        assert f"job {job} is not an audit" in answer.json()["detail"]
    ended(client, job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "query", "sentence"),
    [
        (3, ASKED, "there are 3 photos; an audit needs 20 or more"),
        (COUNT, f"{ASKED}&target=99", "class index 99 is out of range"),
        (COUNT, f"{ASKED}&fuse=mean", "an audit compares methods at layers; leave out fuse"),
        (COUNT, "?model=corner&method=sscamm", "there is no method 'sscamm'"),
        (COUNT, "?model=corner&evaluate=energy", "metric 'energy' needs `region`"),
    ],
)
def test_what_cannot_be_audited_is_refused(
    client: TestClient, count: int, query: str, sentence: str
) -> None:
    before = client.get("/v1/jobs").json()["jobs"]
    answer = submitted(client, count, query)
    assert answer.status_code == 422, answer.text
    assert sentence in answer.json()["detail"]
    assert client.get("/v1/jobs").json()["jobs"] == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["method", "layer"])
@pytest.mark.parametrize("form", ["json", "ndjson"])
def test_a_photo_with_its_own_method_or_layer_is_refused(
    client: TestClient, name: str, form: str
) -> None:
    """Its numbers would be of another comparison. A class of its own is allowed."""
    sent = instances({f"{number}.png": photo(number) for number in range(COUNT)})
    sent[0]["target"] = 1
    sent[3][name] = {"method": "layercam", "layer": "relu"}[name]
    given: dict[str, Any] = {"json": {"instances": sent}}
    if form == "ndjson":
        given = {"content": lines(sent), "headers": NDJSON}
    answer = client.post(f"/v1/audits{ASKED}", **given)
    assert answer.status_code == 422, answer.text
    assert f"instance 3 names its own {name}; an audit compares" in answer.json()["detail"]


@pytest.mark.slow
def test_the_same_key_is_the_same_audit_and_no_job(client: TestClient) -> None:
    first, again = (submitted(client, key="audit once") for _ in range(2))
    assert first.json()["id"] == again.json()["id"]
    images = {f"{number}.png": photo(number) for number in range(COUNT)}
    job = client.post(f"/v1/jobs{ASKED}", content=zipped(images), headers=with_key("audit once"))
    assert job.status_code == 422
    assert "came with another job before" in job.json()["detail"]
    client.delete(f"/v1/jobs/{first.json()['id']}?purge=true")


@pytest.mark.slow
def test_an_audit_waits_while_its_model_is_gone_and_goes_on(tmp_path: Path) -> None:
    """The service starts once with another model only: the audit waits and says why."""
    entries = read_catalog(Path(catalog(tmp_path)))
    settings = Settings(jobs=tmp_path / "jobs")
    with app_with(entries, settings) as client:
        audit = submitted(client).json()["id"]
    with app_with((TINY,), settings) as client:
        document = client.get(f"/v1/audits/{audit}").json()
        assert document["stalled"] == "there is no model 'corner' any more"
        assert document["audit"]["model"] == "corner"
    with app_with(entries, settings) as client:
        ended(client, audit)
        assert client.get(f"/v1/audits/{audit}").json()["audit"]["photos"] == COUNT


@pytest.mark.slow
def test_a_database_without_kinds_gets_them(tmp_path: Path) -> None:
    """Version 1 had jobs that explain, and nothing else."""
    settings = Settings(jobs=tmp_path)
    with app_with((TINY,), settings) as client:
        job = client.post("/v1/jobs", **form_of("zip", {"a.png": photo(0)})).json()["id"]
        ended(client, job)
    with closing(sqlite3.connect(tmp_path / FILE)) as connection, connection:
        connection.execute("alter table jobs drop column kind")
        connection.execute("update gradcam_meta set version = 1")
    for _ in range(2):
        with app_with((TINY,), settings) as client:
            assert client.get(f"/v1/jobs/{job}").json()["kind"] == "explain"
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        assert connection.execute("select version from gradcam_meta").fetchall() == [(VERSION,)]
