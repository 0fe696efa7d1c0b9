"""Each figure of an answer is explained, in the same words wherever it is told."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.core.glossary import TERMS
from service.core.schemas import Explanation
from service.features.batch.parts import Parts
from service.features.tables.rows import Row
from service.features.tables.table import OWN_TERMS, SCHEMA
from tests.service.conftest import CAT, MODEL, encoded
from tests.service.live import ROOT

DOCUMENT = (ROOT / "docs" / "answers.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
LINES = re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", DOCUMENT, re.MULTILINE)[1:]
"""In JSON, column, sentence; without the head."""


def test_the_document_says_what_the_code_says() -> None:
    assert [sentence for *_, sentence in LINES] == [*TERMS.values(), *OWN_TERMS.values()]


def test_each_column_has_its_sentence() -> None:
    told = {
        name: sentence for _, names, sentence in LINES for name in re.findall(r"`(\w+)`", names)
    }
    for field in SCHEMA:
        assert field.metadata[b"description"].decode() == told[field.name]


def test_each_field_of_an_explanation_is_in_the_document() -> None:
    told = {
        name.partition(".")[0].partition("[")[0]
        for names, *_ in LINES
        for name in re.findall(r"`([^`]+)`", names)
    }
    rest = {"instance", "signed", "completeness", "warnings"}
    assert set(Explanation.model_fields) - rest <= told


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the document's examples define, run where a batch has been."""
    values = np.array([[0, 1], [0.5, 0.25]], "<f4")
    row = Row(id="a", map=values.tobytes(), map_encoding="float32", map_height=2, map_width=2)
    parts = Parts(tmp_path / "explained")
    parts.add([row, Row(id="b", error="it is a song", problem="urn:…")])
    parts.merge()
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    for code in CODE:
        exec(code, space)
    return space


def test_the_examples_read_maps(named: dict[str, Any]) -> None:
    (found,) = named["maps"]
    assert found.tolist() == [[0, 1], [0.5, 0.25]]
    data = base64.b64encode(found.tobytes()).decode()
    heatmap = {"data": data, "shape": [2, 2], "encoding": "float32"}
    np.testing.assert_array_equal(named["values"](heatmap), found)


@pytest.mark.parametrize("fit", ["crop", "pad", "squash"])
def test_a_map_is_put_back_onto_the_photo(
    named: dict[str, Any], client: TestClient, photos: dict[int, Image.Image], fit: str
) -> None:
    """By `covers` alone, as the service does it."""

    def ask(size: str) -> dict[str, Any]:
        query = {"fit": fit, "size": size, "output": "values"}
        headers = {"Content-Type": "image/png"}
        data = encoded(photos[CAT])
        response = client.post(f"{MODEL}:explain", params=query, content=data, headers=headers)
        (found,) = response.json()["explanations"]
        return dict(found)

    small, large = ask("layer"), ask("image")
    covers = {f"covers_{edge}": value for edge, value in small["covers"].items()}
    photo = np.asarray(photos[CAT])
    assert list(large["covers"].values()) == [0, 0, photo.shape[1], photo.shape[0]]
    placed = named["on_photo"](named["values"](small["heatmap"]), Row(id="", **covers), photo)
    expected = named["values"](large["heatmap"])
    region = large["region"]
    inside = np.zeros(expected.shape, bool)
    inside[region["top"] :, region["left"] :][: region["height"], : region["width"]] = True
    assert not placed[~inside].any()
    # The two are scaled by the least and the greatest of other pixels.
    line = np.polyfit(placed[inside], expected[inside], 1)
    assert np.abs(np.polyval(line, placed[inside]) - expected[inside]).max() < 0.02
