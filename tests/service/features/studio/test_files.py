"""The files of the page: open, small, current and without scripts of others."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from cam.drawing.overlay import COLORMAPS, HOTTEST, USUAL, USUAL_SIGNED, colorize
from service.app import create_app
from service.features.keys.keys import new_key
from service.features.studio.routes import ADDRESSES, BUILT, PATHS
from service.settings import Settings

pytestmark = pytest.mark.contract
STUDIO = BUILT.parent
LIGHT = 250_000
"""Bytes that the page may load."""


def test_the_page_needs_nothing_from_outside() -> None:
    with TestClient(create_app(Settings(), [])) as client:
        response = client.get("/", headers={"Accept": "text/html"})
    assert response.headers["content-type"].startswith("text/html")
    for word in ('src="http', 'href="http', "@import", "url(http"):
        assert word not in response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]


def test_the_page_and_its_files_are_open_and_small(tmp_path: Path) -> None:
    _, entry = new_key("someone", ["explain"], None)
    (tmp_path / "keys.toml").write_text(entry)
    with TestClient(create_app(Settings(keys=tmp_path / "keys.toml"), [])) as client:
        html = {"Accept": "text/html,*/*"}
        answers = {path: client.get(path, headers=html) for path in PATHS}
        assert {answer.status_code for answer in answers.values()} == {200}
        assert sum(len(answer.content) for answer in answers.values()) < LIGHT
        for path, answer in answers.items():
            again = client.get(path, headers={**html, "If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
            # A proxy that compresses makes a tag weak, and a cache may keep several versions.
            known = {**html, "If-None-Match": f'"old", W/{answer.headers["etag"]}'}
            assert client.get(path, headers=known).status_code == 304
            assert client.get(path, headers={**html, "If-None-Match": '"old"'}).status_code == 200
        for path in ("/studio/", "/studio/../routes.py", "/studio/%2e%2e/routes.py", "/studio/x"):
            assert client.get(path).status_code in (401, 404)
        assert client.get("/v1/models").status_code == 401


def test_the_page_hears_what_the_contract_names() -> None:
    app = create_app(Settings(), [])
    with TestClient(app) as client:
        assert client.get(ADDRESSES).json() == sorted(app.openapi()["paths"])


def test_the_page_has_no_script_of_its_own_and_no_other_host() -> None:
    with TestClient(create_app(Settings(), [])) as client:
        answer = client.get("/", headers={"Accept": "text/html"})
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "://" not in answer.text
    assert "<script>" not in answer.text


def test_colour_maps_are_the_service_s() -> None:
    tables = json.loads((STUDIO / "source" / "colormaps.json").read_text())
    assert tuple(tables) == COLORMAPS
    ramp = np.arange(256)[:, None] / 255
    for name, table in tables.items():
        assert base64.b64decode(table) == colorize(ramp.astype(np.float32), name).tobytes()


def test_colour_maps_for_which_none_is_chosen_are_the_service_s() -> None:
    source = (STUDIO / "source" / "colours.ts").read_text()
    said = dict(re.findall(r'\b(USUAL_SIGNED|SERVICE): Colormap = "(\w+)"', source))
    assert said == {"USUAL_SIGNED": USUAL_SIGNED, "SERVICE": USUAL}
    (hottest,) = re.findall(r"\bHOTTEST = ([\d.]+)", source)
    assert float(hottest) == HOTTEST


@pytest.mark.slow
def test_what_is_checked_in_is_built_of_the_sources(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm on this machine")
    place = tmp_path / "features" / "studio"
    place.mkdir(parents=True)
    for name in ("package.json", "package-lock.json", "tsconfig.json", "build.mjs"):
        shutil.copy(STUDIO / name, place)
    shutil.copytree(STUDIO / "source", place / "source")
    palette = Path("features", "report", "base.css")  # that of the reports, too
    (tmp_path / palette).parent.mkdir(parents=True)
    shutil.copy(STUDIO.parents[1] / palette, tmp_path / palette)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--prefer-offline"]
    done = subprocess.run(install, cwd=place, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"npm cannot install: {done.stderr[-200:]}")
    subprocess.run(["npm", "run", "build"], cwd=place, check=True, capture_output=True)
    built = {file.name: file.read_bytes() for file in (place / "built").iterdir()}
    kept = {file.name: file.read_bytes() for file in BUILT.iterdir()}
    assert built == kept, "run `make studio`"
