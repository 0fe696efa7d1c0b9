"""Jobs through the Python client, against the service itself."""

from __future__ import annotations

import asyncio
import json
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.client import AsyncClient, Client, NotFound, ServiceError
from tests.service.conftest import CAT, ESPRESSO
from tests.service.live import serving


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("jobs")
    with serving(GRADCAM_JOBS=str(folder)) as (_, http):
        yield str(http.base_url)


@pytest.fixture
def shots(tmp_path: Path, cat: bytes, espresso: bytes) -> list[Path]:
    paths = [tmp_path / name for name in ("a cat.png", "ě?.png", "corrupt#.png", "cat.png")]
    for path, content in zip(paths, (cat, espresso, cat[:2000], cat), strict=True):
        path.write_bytes(content)
    return paths


@pytest.mark.slow
def test_from_photos_to_results(served: str, shots: list[Path], tmp_path: Path) -> None:
    with Client(served, timeout=20, retries=1) as client:
        job = client.submit(shots, fit="squash", output="overlay")
        assert job.counts.total == 4
        assert job.document.model == "efficientnet-lite0"
        assert job.wait(timeout=60).state == "done"
        assert job.counts.model_dump() == {"total": 4, "done": 3, "failed": 1, "left": 0}
        results = {Path(result.item).name: result for result in job.results(page=2)}
        assert sorted(result.cursor for result in results.values()) == [1, 2, 3, 4]
        assert [results[path.name].index for path in shots] == [0, 1, 2, 3]
        failure = results["corrupt#.png"].failure
        assert isinstance(failure, ServiceError)
        assert (failure.status, failure.type) == (422, "urn:gradcam-service:undecodable-image")
        for path, index in ((shots[0], CAT), (shots[1], ESPRESSO)):
            (found,) = results[path.name].explanations
            alone = client.explain(path, fit="squash")
            assert found.target.index == index
            np.testing.assert_allclose(found.map, alone.map, atol=2 / 255)
            prediction = results[path.name].prediction
            assert prediction
            assert prediction.classes
            assert prediction.classes[0].index == index
            again = job.result(str(path))
            assert again.cursor == results[path.name].cursor
            np.testing.assert_array_equal(again.explanations[0].map, found.map)
            assert job.picture(str(path)).startswith(b"\x89PNG")
            with Image.open(BytesIO(job.picture(str(path), "image/webp", width=64))) as picture:
                assert (picture.format, picture.width) == ("WEBP", 64)
        for bare in job.results(maps=False):
            whole = results[Path(bare.item).name]
            assert (bare.cursor, bare.index) == (whole.cursor, whole.index)
            assert bare.prediction == whole.prediction
            assert [each.record() for each in bare.explanations] == [
                each.record() for each in whole.explanations
            ]
            for explanation in bare.explanations:
                for name in ("document", "map", "overlay"):
                    with pytest.raises(ValueError, match="read without maps"):
                        getattr(explanation, name)
                shown = explanation._repr_mimebundle_()
                assert shown == {"text/plain": repr(explanation)}
        with pytest.raises(NotFound, match="no item 'ghost'"):
            job.result("ghost")
        with zipfile.ZipFile(job.archive(tmp_path / "out.zip")) as archive:
            lines = archive.read("results.ndjson").splitlines()
        assert {json.loads(line)["item"] for line in lines} == {str(path) for path in shots}
        assert job.archive(tmp_path / "out.parquet").read_bytes()[:4] == b"PAR1"
        assert client.job(job.id).document == job.refresh()
        assert job.cancel().state == "done"  # it has ended, and stays as it is
        assert job.id in [each.id for each in client.jobs("done", page=1)]
        job.purge()
        with pytest.raises(NotFound):
            job.refresh()


@pytest.mark.slow
def test_an_archive_a_manifest_and_a_key(served: str, shots: list[Path], tmp_path: Path) -> None:
    packed = tmp_path / "shots.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(shots[0], "cats/a.png")
        archive.write(shots[1], "b.png")
    with Client(served, timeout=20, retries=1) as client:
        job = client.submit(packed, idempotency_key="photos", target=["tabby", 285])
        assert client.submit(packed, idempotency_key="photos", target=["tabby", 285]).id == job.id
        with pytest.raises(ServiceError) as caught:
            client.submit(packed, idempotency_key="photos", target="tabby")
        assert caught.value.status == 422
        assert job.wait(timeout=120).counts.done == 2
        targets = [each.target.index for each in job.result("cats/a.png").explanations]
        assert targets == [281, 285]
        instances: list[Any] = [
            {"image": shots[0], "id": "x/y", "target": 281},
            {"image": shots[1]},
        ]
        own = client.submit(instances, size="layer")
        maps = {each.item: each.explanations[0] for each in own.results()}
        assert (maps["x/y"].target.label, maps["x/y"].map.shape) == ("tabby", (7, 7))
        assert maps["1"].target.index == ESPRESSO


@pytest.mark.slow
def test_the_same_awaited(served: str, shots: list[Path], tmp_path: Path) -> None:
    async def ask() -> list[Any]:
        async with asyncio.timeout(60), AsyncClient(served) as client:
            job = await client.submit({path.name: path for path in shots}, size="layer")
            seen = [event async for event in job.events()]
            assert seen[-1].state == "done"
            assert seen[-1].counts.model_dump() == {"total": 4, "done": 3, "failed": 1, "left": 0}
            results = [each async for each in job.results()]
            assert (await job.wait(timeout=60)).state == "done"
            assert [event.state async for event in job.events()] == ["done"]
            await job.archive(tmp_path / "out.zip")
            assert job.id in [each.id async for each in client.jobs(page=1)]
            await job.purge()
            return results

    results = asyncio.run(ask())
    assert sorted(result.item for result in results) == sorted(path.name for path in shots)
    assert [result.item for result in results if result.failure] == ["corrupt#.png"]
    assert zipfile.is_zipfile(tmp_path / "out.zip")
