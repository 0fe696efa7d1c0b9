"""What clients of mlflow and of Hugging Face send, at the addresses where they send it."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.core.errors import BodyTooLarge, MalformedRequest, TooManyInstances
from service.features.answers.parameters import AnswerParameters
from service.features.evaluate.parameters import EvaluateParameters
from service.features.platforms.bodies import as_instances
from service.pipeline.parameters import MAX_INSTANCES, Parameters
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_overload import FRAGILE

A, B = (base64.b64encode(encoded(noise(8, 8, seed=seed))).decode() for seed in (0, 1))
ONE = [{"image": {"b64": A}}]
TWO = [{"image": {"b64": A}}, {"image": {"b64": B}}]
NAMED = [{"image": {"b64": A}, "target": 1}, {"image": {"b64": B}, "target": 2}]


@pytest.mark.parametrize(
    ("sent", "instances"),
    [
        ({"inputs": A}, ONE),
        ({"inputs": [A, B]}, TWO),
        ({"inputs": {"image": A}}, ONE),
        ({"inputs": {"image": A, "question": "what?"}}, [{**ONE[0], "question": "what?"}]),
        ({"inputs": {"image": [A, B], "target": [1, 2]}}, NAMED),
        ({"inputs": {"pixels": [A, B]}}, TWO),
        ({"inputs": [[A], [B]]}, TWO),
        (
            {"inputs": "https://x.example/cat.jpg"},
            [{"image": {"url": "https://x.example/cat.jpg"}}],
        ),
        ({"inputs": [{"image": {"b64": A}}, {"b64": B}]}, [ONE[0], {"b64": B}]),
        ({"dataframe_split": {"columns": ["image"], "data": [[A], [B]]}}, TWO),
        (
            {
                "dataframe_split": {
                    "index": [0, 1],
                    "columns": ["target", "image"],
                    "data": [[1, A], [2, B]],
                }
            },
            NAMED,
        ),
        ({"dataframe_split": {"columns": [0], "data": [[A]]}}, ONE),
        ({"dataframe_records": [{"image": A, "target": 1}, {"image": B, "target": 2}]}, NAMED),
        ({"input_data": {"columns": ["image"], "index": [0], "data": [[A]]}}, ONE),
        ({"input_data": [A]}, ONE),
    ],
)
def test_each_form_is_instances(sent: dict[str, Any], instances: list[Any]) -> None:
    assert json.loads(as_instances(json.dumps(sent).encode())) == {"instances": instances}


def test_parameters_are_kept_under_either_name() -> None:
    for name in ("parameters", "params"):
        body = json.dumps({"inputs": A, name: {"method": "layercam"}}).encode()
        expected = {"instances": ONE, "parameters": {"method": "layercam"}}
        assert json.loads(as_instances(body)) == expected


@pytest.mark.parametrize("sent", [{"params": None}, {"params": None, "parameters": {"top_k": 1}}])
def test_params_that_are_null_are_absent(sent: dict[str, Any]) -> None:
    expected = {"instances": ONE, **{name: value for name, value in sent.items() if value}}
    assert json.loads(as_instances(json.dumps({"inputs": A, **sent}).encode())) == expected


@pytest.mark.parametrize(
    "field",
    sorted(
        {"image", "id", "b64", "url"}.union(
            Parameters.own, AnswerParameters.own, EvaluateParameters.own
        )
    ),
)
def test_a_field_of_an_instance_is_not_taken_for_its_image(field: str) -> None:
    for sent in ({field: "what?"}, {field: ["what?"]}, [{field: "what?"}]):
        (found,) = json.loads(as_instances(json.dumps({"inputs": sent}).encode()))["instances"]
        assert found == {field: {"b64": "what?"} if field == "image" else "what?"}


@pytest.mark.parametrize("body", [b'{"instances":[{"b64":"inputs"}]}', b"[1]", b'"inputs"', b"{}"])
def test_any_other_body_is_as_it_was(body: bytes) -> None:
    assert as_instances(body) is body


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ('{"dataframe_split": {"columns": ["image"], "data": [["a", "b"]]}}', "is not like"),
        ('{"dataframe_split": [1]}', "dataframe_split is not like"),
        ('{"dataframe_split": {"data": [["a"]]}}', "dataframe_split is not like"),
        ('{"inputs": {"image": ["a"], "target": [1, 2]}}', "columns of inputs differ in length"),
        ('{"dataframe_split": {"columns": ["a", "a"], "data": [[1, 2]]}}', "one column 'a'"),
        ('{"dataframe_split": {"columns": [0, "0"], "data": [[1, 2]]}}', "one column '0'"),
        ('{"inputs": "a", "params": {}, "parameters": {}}', "send one of them"),
        ('{"inputs":', "is not JSON"),
    ],
)
def test_a_table_that_does_not_fit_is_told(sent: str, words: str) -> None:
    with pytest.raises(MalformedRequest, match=words):
        as_instances(sent.encode())


def table(key: str, columns: list[str], rows: int, value: str = "") -> bytes:
    """A table of equal values, by its rows or, of `inputs`, by its columns."""
    if key == "inputs":
        return json.dumps({key: {name: [value] * rows for name in columns}}).encode()
    data = [[value] * len(columns)] * rows
    return json.dumps({key: {"columns": columns, "data": data}}).encode()


@pytest.mark.parametrize("key", ["dataframe_split", "inputs", "input_data"])
def test_a_small_table_does_not_become_a_large_body(key: str) -> None:
    long = table(key, ["A" * 100_000, "image"], 1000)
    with pytest.raises(MalformedRequest, match="100000 letters; at most 100 are allowed"):
        as_instances(long)
    many = table(key, [f"{turn:0>100}" for turn in range(40)], 1000)
    with pytest.raises(BodyTooLarge, match=r"at most 4 times the body's \d+ are allowed"):
        as_instances(many)
    most = table(key, ["A" * 90, "image"], MAX_INSTANCES, "https://x.example/1")
    assert len(most) < len(as_instances(most)) < 6 * len(most)


@pytest.mark.parametrize("key", ["dataframe_split", "inputs", "input_data"])
def test_rows_are_counted_before_they_become_instances(key: str) -> None:
    words = f"{key} has {MAX_INSTANCES + 1} instances; at most {MAX_INSTANCES} are allowed"
    for sent in (
        table(key, ["image"], MAX_INSTANCES + 1),
        table(key, ["A" * 100_000, "image"], MAX_INSTANCES + 1),
    ):
        tracemalloc.start()
        with pytest.raises(TooManyInstances, match=words):
            as_instances(sent)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
        tracemalloc.stop()


def test_the_elements_of_a_list_are_counted() -> None:
    with pytest.raises(TooManyInstances, match="dataframe_records has 1025 instances"):
        as_instances(json.dumps({"dataframe_records": [{"image": ""}] * 1025}).encode())


def test_elements_are_counted_before_they_are_read() -> None:
    with pytest.raises(BodyTooLarge):
        as_instances(b'{"inputs":[' + b"[]," * 1_000_000 + b"[]]}")


@pytest.fixture(scope="module")
def sagemaker() -> Iterator[TestClient]:
    with running_app(Settings.read({"GRADCAM_PLATFORM": "sagemaker"}), [FRAGILE]) as client:
        yield client


def test_sagemaker_answers_the_clients_of_hugging_face_and_mlflow(sagemaker: TestClient) -> None:
    parameters = {"method": "layercam"}
    own = {"instances": ONE, "parameters": parameters}
    (expected,) = sagemaker.post("/v1/models/fragile:explain", json=own).json()["explanations"]
    for body in (
        {"inputs": A, "parameters": parameters},
        {"dataframe_split": {"columns": ["image"], "data": [[A]]}, "params": parameters},
    ):
        answer = sagemaker.post("/invocations", json=body)
        assert answer.status_code == 200, answer.text
        (found,) = answer.json()["explanations"]
        assert (found["method"], found["heatmap"]) == ("layercam", expected["heatmap"])


def test_what_the_service_does_not_take_is_told_at_the_instance(sagemaker: TestClient) -> None:
    for body, words in (
        ({"inputs": [1]}, "/instances/0"),
        ({"inputs": {"image": A, "colour": "x"}}, "there is no field 'colour'"),
        ({"inputs": A, "parameters": {"top_n": 3}}, "there is no parameter 'top_n'"),
    ):
        answer = sagemaker.post("/invocations", json=body)
        assert 400 <= answer.status_code < 500
        assert words in answer.json()["detail"]


def test_azure_answers_mlflows_clients() -> None:
    with running_app(Settings.read({"GRADCAM_PLATFORM": "azure"}), [FRAGILE]) as client:
        body = {"input_data": {"columns": ["image"], "index": [0, 1], "data": [[A], [B]]}}
        assert len(client.post("/score", json=body).json()["explanations"]) == 2


def test_the_native_route_takes_instances_alone(sagemaker: TestClient) -> None:
    answer = sagemaker.post("/v1/models/fragile:explain", json={"inputs": A})
    assert (answer.status_code, "inputs" in answer.json()["detail"]) == (422, True)
