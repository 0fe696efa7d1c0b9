"""Questions through the Open Inference Protocol, to the small model that the service brings."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient
from tritonclient import grpc as triton

from service.core.errors import MalformedRequest, Problem
from service.features.answers.parameters import AnswerParameters
from service.features.open_inference.inference import InferRequest, read_images
from service.features.open_inference.tensors import Tensor
from service.models.catalog import ModelEntry
from service.pipeline.parameters import Parameters
from service.settings import Settings
from service.sources.embedded.build import SHAPES
from tests.scenes import Scene, Thing, make_scene
from tests.service.conftest import encoded, running_app, values
from tests.service.live import free_port

V2 = "/v2/models/shapes"
PHOTOS = [
    encoded(Image.fromarray(scene.draw(192)))
    for scene in (
        Scene(
            (Thing("red", "circle", 0.25, 0.4, 0.16), Thing("blue", "square", 0.75, 0.6, 0.17)),
            "left of",
            80,
        ),
        make_scene(np.random.default_rng(3)),
    )
]
QUESTIONS = ["What is in the picture?", "what colour is the circle?"]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TestClient, str]]:
    """A service with HTTP and gRPC, and the address of gRPC."""
    port = free_port()
    entry = ModelEntry(name="shapes", source=SHAPES)
    with running_app(Settings(grpc_port=port), [entry]) as client:
        yield client, f"127.0.0.1:{port}"


def tensor(name: str, *data: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [len(data)], "data": list(data)}


def images(*photos: bytes) -> dict[str, Any]:
    return tensor("image", *(base64.b64encode(photo).decode() for photo in photos))


def outputs_of(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 200, answer.text
    return {one["name"]: one["data"] for one in answer.json()["outputs"]}


def native(client: TestClient, photo: bytes, question: str) -> Any:
    headers = {"Content-Type": "image/png"}
    answer = client.post(
        "/v1/models/shapes:answer", params={"question": question}, content=photo, headers=headers
    )
    (found,) = answer.json()["answers"]
    return found


def test_each_image_has_its_question(served: tuple[TestClient, str]) -> None:
    client, _ = served
    sent = {"inputs": [images(*PHOTOS), tensor("question", *QUESTIONS)], "id": "two"}
    outputs = outputs_of(client.post(f"{V2}/infer", json=sent))
    told = [json.loads(text) for text in outputs["answer"]]
    assert [one["text"] for one in told] == outputs["text"]
    for index, (photo, question) in enumerate(zip(PHOTOS, QUESTIONS, strict=True)):
        expected = native(client, photo, question)
        assert outputs["text"][index] == expected["text"]
        assert (told[index]["question"], told[index]["id"]) == (question, "two")
        for word, alone in zip(told[index]["words"], expected["words"], strict=True):
            assert word["text"] == alone["text"]
            np.testing.assert_allclose(values(word), values(alone), atol=0.02)


def test_one_question_for_all_is_a_parameter(served: tuple[TestClient, str]) -> None:
    client, _ = served
    sent = {
        "inputs": [images(*PHOTOS)],
        "outputs": [{"name": "text"}],
        "parameters": {"question": QUESTIONS[0], "max_tokens": 2},
    }
    outputs = outputs_of(client.post(f"{V2}/infer", json=sent))
    assert list(outputs) == ["text"]
    expected = [native(client, photo, QUESTIONS[0])["text"].split()[:2] for photo in PHOTOS]
    assert [text.split() for text in outputs["text"]] == expected


def test_tritons_client_asks_over_grpc(served: tuple[TestClient, str]) -> None:
    with triton.InferenceServerClient(served[1]) as client:
        described = client.get_model_metadata("shapes")
        assert [one.name for one in described.inputs] == ["image", "question"]
        assert [one.name for one in described.outputs] == ["text", "answer"]
        config = client.get_model_config("shapes").config
        assert [one.name for one in config.input] == ["image", "question"]
        sent = []
        for name, value in (("image", PHOTOS[0]), ("question", QUESTIONS[0].encode())):
            sent.append(triton.InferInput(name, [1], "BYTES"))
            sent[-1].set_data_from_numpy(np.array([value], dtype=object))
        answer = client.infer("shapes", sent)
    expected = native(served[0], PHOTOS[0], QUESTIONS[0])["text"]
    assert answer.as_numpy("text").tolist() == [expected.encode()]
    assert json.loads(answer.as_numpy("answer")[0])["text"] == expected


@pytest.mark.parametrize(
    ("more", "status", "words"),
    [
        ({}, 422, "question is empty"),
        ({"parameters": {"top_k": 3}}, 422, "there is no parameter 'top_k'"),
        ({"outputs": [{"name": "heatmap"}]}, 422, "they are text, answer"),
        ({"inputs": [tensor("question", "a?")]}, 400, "the request has no input 'image'"),
        ({"inputs": [images(PHOTOS[0]), tensor("target", "cat")]}, 422, "image and question"),
        (
            {"inputs": [images(PHOTOS[0]), tensor("question", "a?", "b?")]},
            400,
            "2 questions are given for 1 image",
        ),
    ],
)
def test_what_is_wrong_is_told(
    served: tuple[TestClient, str], more: dict[str, Any], status: int, words: str
) -> None:
    answer = served[0].post(f"{V2}/infer", json={"inputs": [images(PHOTOS[0])], **more})
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("schema", "beside", "wrong", "words"),
    [
        (AnswerParameters, "question", b"a" * 5000, "question is 'aaa"),
        (Parameters, "target", b"{", "target is '{'"),
    ],
)
def test_a_wrong_value_is_blamed_on_its_input(
    schema: Any, beside: str, wrong: bytes, words: str
) -> None:
    photos = Tensor("image", (2,), strings=[b"1", b"2"])
    values = Tensor(beside, (2,), strings=[b"cat", wrong])
    request = InferRequest("m", "", "", {}, [photos, values], [], frozenset())
    with pytest.raises(Problem, match=words) as caught:
        read_images(request, schema, beside, 8)
    assert caught.value.pointer == f"/inputs/{beside}/1"


@pytest.mark.parametrize(
    ("schema", "beside"), [(AnswerParameters, "question"), (Parameters, "target")]
)
def test_the_only_input_is_the_image_unless_it_has_a_name_of_its_own(
    schema: Any, beside: str
) -> None:
    def read(name: str) -> list[Any]:
        request = InferRequest(
            "m", "", "", {}, [Tensor(name, (1,), strings=[b"1"])], [], frozenset()
        )
        return read_images(request, schema, beside, 8)

    assert [one.image for one in read("pixels")] == [b"1"]
    with pytest.raises(MalformedRequest, match="has no input 'image'"):
        read(beside)
