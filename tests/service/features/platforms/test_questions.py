"""A model that answers questions, behind the addresses at which platforms explain."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from PIL import Image

from service.features.platforms.vertex import nest
from service.models.catalog import EMBEDDED, ModelEntry
from service.settings import Settings
from service.sources.embedded.build import SHAPES
from tests.scenes import Scene, Thing
from tests.service.conftest import encoded, running_app

ENTRY = ModelEntry(name="shapes", source=SHAPES)
SCENE = Scene(
    (Thing("red", "circle", 0.25, 0.4, 0.16), Thing("blue", "square", 0.75, 0.6, 0.17)),
    "left of",
    80,
)
PHOTO = encoded(Image.fromarray(SCENE.draw(192)))
QUESTION = "What is in the picture?"
PLATFORMS = [("sagemaker", "/invocations"), ("azure", "/score"), ("vertex", "/predict")]


def same(answer: dict[str, Any]) -> Any:
    """What does not depend on the last bits of a number."""
    words = [(word["text"], word["heatmap"]["shape"]) for word in answer["words"]]
    return answer.keys(), answer["text"], answer["question"], words


@pytest.mark.parametrize(("platform", "path"), PLATFORMS)
def test_the_address_of_a_platform_answers(platform: str, path: str) -> None:
    instance = {"image": {"b64": base64.b64encode(PHOTO).decode()}}
    sent: dict[str, Any] = {
        "instances": [{**instance, "question": QUESTION, "id": "a"}, instance],
        "parameters": {"question": "what colour is the circle?"},
    }
    with running_app(Settings.read({"GRADCAM_PLATFORM": platform}), [ENTRY, EMBEDDED]) as client:
        answer = client.post(path, json=sent)
        assert answer.status_code == 200, answer.text
        native = client.post("/v1/models/shapes:answer", json=sent).json()
        raw = client.post(
            path,
            params={"question": QUESTION},
            content=PHOTO,
            headers={"Content-Type": "image/png", "Accept": "image/png"},
        )
    # Vertex passes on predictions alone.
    key = "predictions" if platform == "vertex" else "answers"
    assert list(answer.json()) == [key]
    first, second = answer.json()[key]
    assert [same(one) for one in (first, second)] == [same(one) for one in native["answers"]]
    assert "red circle" in first["text"]
    assert (first["question"], first["id"]) == (QUESTION, "a")
    assert second["question"] == "what colour is the circle?"
    assert raw.content.startswith(b"\x89PNG")


def test_sagemaker_names_another_model_or_operation() -> None:
    settings = Settings.read({"GRADCAM_PLATFORM": "sagemaker"})
    with running_app(settings, [EMBEDDED, ENTRY]) as client:

        def asked(attributes: str) -> Any:
            headers = {
                "Content-Type": "application/x-image",
                "X-Amzn-SageMaker-Custom-Attributes": attributes,
            }
            return client.post("/invocations", content=PHOTO, headers=headers)

        assert "explanations" in asked("").json()
        assert "answers" in asked("model=shapes&question=what+is+in+the+picture%3F").json()
        refused = asked("model=shapes&operation=explain")
    assert (refused.status_code, ":answer" in refused.json()["detail"]) == (422, True)


def test_an_answer_that_failed_stays_as_it_is() -> None:
    body = b'{"answers":[{"instance":0,"error":"x","problem":{"status":422}}]}'
    assert nest(body) == body.replace(b"answers", b"predictions")
