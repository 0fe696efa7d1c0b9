"""No photo waits for a garbage collection: what an error refers to does not refer to the error."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.settings import Settings
from tests.service.conftest import MODEL, encoded, noise, running_app

WHOLE = noise(1200, 1200)
PNG, JPEG = encoded(WHOLE), encoded(WHOLE, "JPEG")
LARGE = 1_000_000
"""Bytes from which on an array may be a photo."""


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with running_app(Settings(cache_bytes=0)) as client:
        yield client


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (":explain", PNG[:-60], 422),
        (":explain", JPEG[:-3000], 422),
        (":predict", PNG[:-60], 422),
        (":explain?target=99999", JPEG, 422),
        (":explain?method=rollout", JPEG, 422),
        (":explain", JPEG, 200),
    ],
)
def test_no_photo_is_left_in_a_cycle(
    client: TestClient, path: str, body: bytes, status: int
) -> None:
    kind = {"Content-Type": "image/png" if body.startswith(b"\x89PNG") else "image/jpeg"}
    client.post(f"{MODEL}{path}", content=body, headers=kind)
    gc.collect()
    gc.disable()
    try:
        found = client.post(f"{MODEL}{path}", content=body, headers=kind)
        assert found.status_code == status, found.text
        client.get("/healthz")  # the threads have forgotten it by now
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        photos = [
            each
            for each in gc.garbage
            if isinstance(each, Image.Image)
            or (isinstance(each, np.ndarray) and each.nbytes >= LARGE)
        ]
        assert not photos
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
