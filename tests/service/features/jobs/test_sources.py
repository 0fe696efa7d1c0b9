"""Images that are only named: below a folder, in an object store, at an address."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from starlette.testclient import TestClient

from service.features.jobs import sources
from service.features.jobs.settings import FILE
from service.features.jobs.sources import AT_ONCE
from service.settings import Settings
from tests.service.conftest import encoded, noise
from tests.service.features.jobs.conftest import MOST_BYTES, TINY, app_with
from tests.service.features.jobs.forms import (
    accepted,
    done,
    ended,
    inline,
    results,
)
from tests.waiting import until

DOT = encoded(noise(9, 9))
GOOD = {"image": inline(DOT)}
TINILY = {"model": "tiny"}
LARGE = bytes(MOST_BYTES + 1)

pytestmark = pytest.mark.usefixtures("nothing_is_left")


@pytest.fixture(scope="module")
def inputs(jobs: TestClient, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of inputs: pictures in it, links out of it and in circles."""
    folder: Path = jobs.app.state.inputs  # type: ignore[attr-defined]
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.png").write_bytes(DOT)
    (folder / "deep").mkdir()
    for name in ("here.png", "deep/käse 1.png"):
        (folder / name).write_bytes(DOT)
    (folder / "out.png").symlink_to(outside / "secret.png")
    (folder / "out").symlink_to(outside)
    (folder / "within.png").symlink_to(folder / "here.png")
    (folder / "round.png").symlink_to(folder / "round.png")
    (folder / "large.png").write_bytes(LARGE)
    (folder / "empty.png").write_bytes(b"")
    os.mkfifo(folder / "pipe.png")
    return folder


PATHS = {
    "../outside/secret.png": ("forbidden", "not a path below the folder of inputs"),
    "deep/../here.png": ("forbidden", "not a path below the folder of inputs"),
    "..\\secret.png": ("forbidden", "not a path below the folder of inputs"),
    "/etc/passwd": ("forbidden", "not a path below the folder of inputs"),
    "here.png\x00": ("forbidden", "not a path below the folder of inputs"),
    "out.png": ("forbidden", "leads out of the folder of inputs"),
    "out/secret.png": ("forbidden", "leads out of the folder of inputs"),
    "round.png": ("undecodable-image", "cannot be read"),
    "missing.png": ("undecodable-image", "cannot be read: No such file or directory"),
    "deep": ("undecodable-image", "cannot be read: "),
    "here.png/x": ("undecodable-image", "cannot be read: "),
    "pipe.png": ("undecodable-image", "cannot be read: it is not a file"),
    "x" * 300: ("undecodable-image", "cannot be read: File name too long"),
    "large.png": ("image-too-large", f"more than the {MOST_BYTES} bytes"),
    "empty.png": ("undecodable-image", ""),
    "file:///etc/passwd": ("undecodable-image", "cannot be read"),
}


def test_paths(jobs: TestClient, inputs: Path) -> None:
    good = ["here.png", "deep/käse 1.png", "./deep/käse 1.png", "within.png", "deep\\käse 1.png"]
    sent = [{"id": path, "image": {"path": path}} for path in [*good, *PATHS]]
    job = accepted(jobs.post("/v1/jobs", json={"model": "tiny", "instances": sent}))["id"]
    ended(jobs, job)
    found = {sent[line["index"]]["id"]: line for line in results(jobs, job).values()}
    for path in good:
        assert "error" not in found[path], found[path]
    for path, (kind, words) in PATHS.items():
        assert found[path]["problem"]["type"] == f"urn:gradcam-service:{kind}", found[path]
        assert words in found[path]["error"], found[path]
        assert str(inputs) not in found[path]["error"]


URIS = {
    "memory://hidden/a.png": "may not come from",
    "s3://bucket/a.png": "may not come from",
    "file:///etc/passwd": "may not come from",
    "/etc/passwd": "may not come from",
    "memory://shown/../hidden/a.png": "may not come from",
    "memory://shown/x::file:///etc/passwd": "may not come from",
    "simplecache::memory://shown/a.png": "may not come from",
    "zip://a.png::memory://shown/a.zip": "may not come from",
    "memory://shown/%2e%2e/hidden/a.png": "may not come from",
    "memory://shown/%252e%252e/hidden/a.png": "may not come from",
    "memory://shown/.\t./hidden/a.png": "may not come from",
    "memory://shown/x%3a%3afile:///etc/passwd": "may not come from",
}


def test_uris(jobs: TestClient) -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/shown/deep/a.png", DOT)
    store.pipe("/shown/large.png", LARGE)
    store.pipe("/hidden/a.png", DOT)
    others = {
        "memory://shown/missing.png": "unfetchable-image",
        "memory://shown/*": "unfetchable-image",
        "memory://shown/large.png": "image-too-large",
    }
    sent = [
        {"id": uri, "image": {"uri": uri}} for uri in ("memory://shown/deep/a.png", *URIS, *others)
    ]
    found = done(jobs, json={"model": "tiny", "instances": sent})
    assert "error" not in found["memory://shown/deep/a.png"]
    for uri, words in URIS.items():
        assert found[uri]["problem"]["type"] == "urn:gradcam-service:forbidden", found[uri]
        assert words in found[uri]["error"]
        assert "memory://shown/*" in found[uri]["error"]
    for uri, kind in others.items():
        assert found[uri]["problem"]["type"] == f"urn:gradcam-service:{kind}", found[uri]


def test_addresses_are_no_uris(tmp_path: Path) -> None:
    """As such they are fetched with care, wherever they lead."""
    with app_with((TINY,), Settings(jobs=tmp_path, input_uris=("http*", "HTTPS*"))) as client:
        for address in ("http://127.0.0.1:9/a.png", "HTTPS://example.org/a.png"):
            found = done(client, json={"instances": [{"id": "a", "image": {"uri": address}}]})
            assert "name it as 'url', of a host in GRADCAM_IMAGE_HOSTS" in found["a"]["error"]
            assert found["a"]["problem"]["status"] == 403


class Mute(MemoryFileSystem):  # type: ignore[misc]
    """A store that does not answer before the test is over."""

    protocol = "mute"
    over = threading.Event()

    def _open(self, *path: object, **how: object) -> object:
        self.over.wait()
        raise FileNotFoundError


@pytest.fixture
def mute(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    fsspec.register_implementation("mute", Mute, clobber=True)
    Mute.over.clear()
    yield "mute://store/{}.png"
    Mute.over.set()


@pytest.mark.slow
def test_a_store_that_does_not_answer_holds_up_nobody_else(
    tmp_path: Path, mute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.features.jobs.sources.READ_SECONDS", 4.0)
    with app_with((TINY,), Settings(jobs=tmp_path, input_uris=("mute://*",))) as client:
        named = [{"image": {"uri": mute.format(at)}} for at in range(AT_ONCE - 1)]
        waiting = accepted(client.post("/v1/jobs", json={"instances": named}))["id"]
        found = done(client, json={"instances": [{"id": "mine", **GOOD}]})
        assert "error" not in found["mine"]
        assert client.get(f"/v1/jobs/{waiting}").json()["counts"]["left"] == len(named)
        ended(client, waiting)
        for line in results(client, waiting).values():
            assert line["problem"]["type"] == "urn:gradcam-service:unfetchable-image"
            assert "it has not come within 4 s" in line["error"]


def test_a_store_that_does_not_answer_holds_up_no_end(
    tmp_path: Path, mute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[asyncio.Timeout] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        limits.append(asyncio.timeout(seconds))
        return limits[-1]

    monkeypatch.setattr(
        sources, "asyncio", SimpleNamespace(**{**vars(asyncio), "timeout": timeout})
    )
    with app_with((TINY,), Settings(jobs=tmp_path, input_uris=("mute://*",))) as client:
        named = [{"image": {"uri": mute.format(at)}} for at in range(3)]
        job = accepted(client.post("/v1/jobs", json={"instances": named}))["id"]
        until(lambda: any(one.name.startswith("read mute:") for one in threading.enumerate()))
        assert client.get(f"/v1/jobs/{job}").json()["state"] == "running"
    # Its end waited neither for the reads nor for the limit at which they fail.
    assert [limit.expired() for limit in limits] == [False] * 3
    assert any(one.name.startswith("read mute:") for one in threading.enumerate())
    with closing(sqlite3.connect(tmp_path / FILE)) as database:
        assert {*database.execute("SELECT state, attempts FROM items")} == {("free", 0)}


def test_places_that_the_service_is_not_set_up_to_read(tmp_path: Path) -> None:
    with app_with((TINY,), Settings(jobs=tmp_path)) as client:
        named = [
            {"id": form, "image": {form: f"https://example.org/{form}"}}
            for form in ("path", "uri", "url")
        ]
        found = done(client, json={"instances": [*named, {"id": "b64", **GOOD}]})
        for form, words in (
            ("path", "GRADCAM_INPUTS"),
            ("uri", "allowed are none; see GRADCAM_INPUT_URIS"),
            ("url", "fetches no images"),
        ):
            assert words in found[form]["error"], found[form]
            assert found[form]["problem"]["status"] in (403, 422)
        assert "error" not in found["b64"]
