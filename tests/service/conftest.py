"""One app with the embedded model for the whole session, and photos whose classes are known."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import skimage.data
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.core.disk_cache import DiskCache
from service.models.catalog import EMBEDDED, ModelEntry
from service.runtimes.openvino import path
from service.settings import Settings
from tests.service.live import serving
from tests.waiting import until

MODEL = "/v1/models/efficientnet-lite0"
SLOW = """
[[models]]
name = "slow"
source = "factory:tests.zoo.factories:slow"
weights = "none"
input_size = 8
max_batch = 1
"""
CAT, ESPRESSO, TRIPOD, MOPED = 285, 967, 872, 665
ELSEWHERE = os.environ.pop("GRADCAM_TEST_URL", None)
"""Where a service runs already: the contract's tests are then of that one. Those that are started
here would take it for a setting."""

# Converting each test's model for OpenVINO would take longer than the test; the tests of that path
# set it back.
setattr(path, "is_installed", lambda: False)  # noqa: B010 - mypy allows no assignment


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def client() -> Iterator[httpx2.Client]:
    if ELSEWHERE:
        with httpx2.Client(base_url=ELSEWHERE, timeout=60, follow_redirects=True) as http:
            yield http
        return
    with running_app(Settings()) as client:
        yield client


@pytest.fixture(scope="session")
def slow_catalog(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a model whose forward pass takes half a second, one image at a time."""
    file = tmp_path_factory.mktemp("slow") / "models.toml"
    file.write_text(SLOW)
    return str(file)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Of a served embedded model, in a process of its own."""
    if ELSEWHERE:
        yield ELSEWHERE
        return
    # Beside other tests, scores take longer than a caller would wait.
    with serving(GRADCAM_DEADLINE_SECONDS="300") as (_, http):
        yield str(http.base_url).rstrip("/")


KEPT = DiskCache(Path(os.environ["TESTS_CACHE"]))
"""What other tests have found out about a model: of the embedded one it takes ten seconds."""


def restarted(settings: Settings) -> Settings:
    """As of a service that knows what another test's has found out about a model."""
    kept = settings.cache or Path(os.environ["TESTS_CACHE"])
    return settings.model_copy(update={"cache": kept})


@contextmanager
def running_app(
    settings: Settings, entries: Sequence[ModelEntry] = (EMBEDDED,)
) -> Iterator[TestClient]:
    """The service in this process, once it can explain."""
    with TestClient(create_app(restarted(settings), entries)) as client:
        wait_until_ready(client)
        yield client


def wait_until_ready(client: TestClient, seconds: float = 120) -> None:
    until(lambda: client.get("/readyz").status_code == 200, seconds)


@pytest.fixture(scope="session")
def photos() -> dict[int, Image.Image]:
    arrays = {
        CAT: skimage.data.chelsea(),
        ESPRESSO: skimage.data.coffee(),
        TRIPOD: skimage.data.camera(),
        MOPED: skimage.data.stereo_motorcycle()[0],
    }
    return {index: Image.fromarray(array).convert("RGB") for index, array in arrays.items()}


@pytest.fixture(scope="session")
def cat(photos: dict[int, Image.Image]) -> bytes:
    return encoded(photos[CAT])


@pytest.fixture(scope="session")
def espresso(photos: dict[int, Image.Image]) -> bytes:
    return encoded(photos[ESPRESSO])


def encoded(image: Image.Image, format: str = "PNG", **options: object) -> bytes:  # noqa: A002
    file = BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def values(explanation: Any) -> np.ndarray[Any, Any]:
    """Return the numbers or gray levels of an explanation's map."""
    heatmap = explanation["heatmap"]
    if heatmap["encoding"] == "png":
        return pixels(base64.b64decode(heatmap["data"]))
    return np.frombuffer(base64.b64decode(heatmap["data"]), "<f4").reshape(heatmap["shape"])


def pixels(file: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(BytesIO(file)))


def comparable(document: Any) -> Any:
    """Return an answer with the pixels of its PNG files: files of equal pixels may differ."""
    if isinstance(document, list):
        return [comparable(each) for each in document]
    if not isinstance(document, dict):
        return document
    shown = {key: comparable(each) for key, each in document.items()}
    if shown.get("content_type") == "image/png" or shown.get("encoding") == "png":
        shown["data"] = pixels(base64.b64decode(shown["data"])).tolist()
    return shown
