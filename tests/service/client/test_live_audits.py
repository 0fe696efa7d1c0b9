"""Audits, clusters and drift through the Python client, against the service itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.client import AsyncClient, Client, NotFinished, ServiceError
from tests.service.features.audit.photos import catalog, photos
from tests.service.live import serving

COUNT = 20


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("audits")
    settings = {"GRADCAM_JOBS": str(folder / "jobs"), "GRADCAM_MODELS": catalog(folder)}
    with serving(**settings) as (_, http):
        yield str(http.base_url)


@pytest.mark.slow
def test_from_photos_to_a_recommendation(served: str, tmp_path: Path) -> None:
    shots = sorted(photos(tmp_path / "shots", COUNT).iterdir())
    with Client(served, model="corner", timeout=60) as client:
        job = client.audit(shots, method=["gradcam", "hirescam"], evaluate=["deletion"])
        assert job.document.kind == "audit"
        assert job.wait(timeout=120).state == "done"
        found = job.audit()
        assert found.photos == COUNT
        assert found.recommendation is not None
        assert found.recommendation.method == "hirescam"
        page = job.report(tmp_path / "audit.html").read_text()
        assert "hirescam@features" in page
        assert client.job(job.id).audit() == found
        with pytest.raises(ServiceError, match="audit"):
            job.clusters()


@pytest.mark.slow
def test_clusters_of_a_job(served: str, tmp_path: Path) -> None:
    shots = sorted(photos(tmp_path / "shots", COUNT).iterdir())

    async def run() -> None:
        async with AsyncClient(served, model="corner", timeout=60) as client:
            job = await client.submit(shots, target=0)
            if not job.document.ended:
                with pytest.raises(NotFinished):
                    await job.clusters()
            await job.wait(timeout=60)
            (found,) = await job.clusters()
            assert found.maps == COUNT
            assert found.class_.index == 0
            assert found.note or sum(len(each.items) for each in found.clusters) == COUNT
            with pytest.raises(ServiceError, match="not an audit"):
                await job.audit()

    asyncio.run(run())


@pytest.mark.slow
def test_a_model_without_a_reference_has_no_drift(served: str) -> None:
    with Client(served, model="corner", timeout=20) as client:
        found = client.drift()
        assert (found.model, found.made, found.moved) == ("corner", None, None)
        with pytest.raises(ServiceError, match="20"):
            client.audit([b"one"])
