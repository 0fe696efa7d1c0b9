"""Kinds of jobs beside `explain`, which other features add."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.conftest import encoded, noise
from tests.service.features.jobs.apps import app_at, post
from tests.service.features.jobs.desk import desk_at
from tests.service.features.jobs.forms import check


def test_a_job_of_a_kind_that_is_gone_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desk_at(tmp_path) as desk:
        audit = desk.job(2, kind="audit").id
    monkeypatch.setattr("service.features.jobs.adapter.additions", lambda folder: [])
    with app_at(tmp_path) as client:
        known = client.get(f"/v1/jobs/{audit}").json()
        assert known["stalled"] == "this service has no jobs of the kind 'audit'"
        assert client.get(f"/v1/jobs/{audit}/clusters").status_code == 409
        assert client.post("/v1/audits", content=b"{}").status_code == 404
        assert client.delete(f"/v1/jobs/{audit}?purge=true").is_success
        assert client.get(f"/v1/jobs/{audit}").status_code == 404


def test_where_no_jobs_are_taken_stored_ones_are_there(tmp_path: Path) -> None:
    with app_at(tmp_path / "none", max_jobs=0) as client:
        assert client.get("/v1/jobs").status_code == 404
        assert not [path for path in client.get("/openapi.json").json()["paths"] if "job" in path]
    with desk_at(tmp_path) as desk:
        stored = desk.job(2).id
    with app_at(tmp_path, max_jobs=0) as client:
        assert [job["id"] for job in client.get("/v1/jobs").json()["jobs"]] == [stored]
        check(post(client, [encoded(noise(8, 8))]), 429, "too-many-jobs", "1 job is unfinished")
