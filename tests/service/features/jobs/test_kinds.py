"""Kinds of jobs beside `explain`, which other features add."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.features.jobs.apps import app_at
from tests.service.features.jobs.desk import desk_at


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
