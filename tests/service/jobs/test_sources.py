"""Images that are only named: below a folder, in an object store, at an address."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest
from starlette.testclient import TestClient

from service.settings import Settings
from tests.service.conftest import encoded, noise
from tests.service.jobs.conftest import MOST_BYTES, TINY, app_with
from tests.service.jobs.forms import (
    accepted,
    done,
    ended,
    inline,
    results,
)

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
    "../outside/secret.png": ("forbidden", "no path below the folder of inputs"),
    "deep/../here.png": ("forbidden", "no path below the folder of inputs"),
    "..\\secret.png": ("forbidden", "no path below the folder of inputs"),
    "/etc/passwd": ("forbidden", "no path below the folder of inputs"),
    "here.png\x00": ("forbidden", "no path below the folder of inputs"),
    "out.png": ("forbidden", "leads out of the folder of inputs"),
    "out/secret.png": ("forbidden", "leads out of the folder of inputs"),
    "round.png": ("undecodable-image", "cannot be read"),
    "missing.png": ("undecodable-image", "cannot be read: No such file or directory"),
    "deep": ("undecodable-image", "cannot be read: "),
    "here.png/x": ("undecodable-image", "cannot be read: "),
    "pipe.png": ("undecodable-image", "cannot be read: it is no file"),
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
