"""openapi/openapi.json is what the app says, and its examples work."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest

from service.app import create_app
from service.settings import Settings
from tests.service.live import ROOT

DOCUMENT: dict[str, Any] = json.loads((ROOT / "openapi" / "openapi.json").read_text())
OPERATIONS = [
    (path, verb, operation)
    for path, item in DOCUMENT["paths"].items()
    for verb, operation in item.items()
]


def test_the_document_is_current() -> None:
    assert create_app(Settings()).openapi() == DOCUMENT, "run: make openapi"


def test_another_app_of_the_process_has_the_same_document() -> None:
    """Apps share the descriptions of their requests and answers, and change none."""
    assert [create_app(Settings()).openapi() for _ in range(2)] == [DOCUMENT, DOCUMENT]


def test_a_parameter_is_left_out_and_never_null() -> None:
    """A query has no null, and generators name types after it that do not compile."""
    schemas = [
        (parameter["name"], parameter["schema"])
        for *_, operation in OPERATIONS
        for parameter in operation.get("parameters", ())
    ]
    assert ("prompts", "array") in [(name, schema.get("type")) for name, schema in schemas]
    assert [name for name, schema in schemas if {"type": "null"} in schema.get("anyOf", ())] == []


def test_what_a_client_is_generated_from_has_names() -> None:
    """A generator names types after components, and functions after operations."""

    def unnamed(node: Any, where: str) -> list[str]:
        """Where an object or an enumeration is written out in place."""
        if isinstance(node, list):
            return [found for each in node for found in unnamed(each, where)]
        if not isinstance(node, dict):
            return []
        here = [where] if "enum" in node or "properties" in node else []
        return here + [
            found
            for key, each in node.items()
            if key != "example"
            for found in unnamed(each, where)
        ]

    assert unnamed([operation for *_, operation in OPERATIONS], "an operation") == []
    components = DOCUMENT["components"]["schemas"]
    for name, schema in components.items():
        assert unnamed([*schema.get("properties", {}).values()], name) == []
        if "+" in str(schema.get("enum")):  # of which a generator makes no identifier
            assert len(set(schema["x-enum-varnames"])) == len(schema["enum"])
            assert all(map(str.isidentifier, schema["x-enum-varnames"]))


@pytest.mark.parametrize(("path", "verb", "operation"), OPERATIONS)
def test_every_operation_shows_what_goes_in_and_what_comes_out(
    path: str, verb: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    done = next(each for status, each in operation["responses"].items() if status[0] == "2")
    if verb != "delete":
        answers = done["content"].values()
        files = all(answer.get("schema", {}).get("format") == "binary" for answer in answers)
        assert files or any("example" in answer for answer in answers)
    if verb == "post":
        assert "example" in operation["requestBody"]["content"]["application/json"]


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_the_request_examples_work(address: str, verb: str) -> None:
    operation = DOCUMENT["paths"][f"/v1/models/{{model}}:{verb}"]["post"]
    example = operation["requestBody"]["content"]["application/json"]["example"]
    response = httpx2.post(f"{address}/v1/models/efficientnet-lite0:{verb}", json=example)
    assert response.status_code == 200, response.text
    shown = operation["responses"]["200"]["content"]["application/json"]["example"]
    assert response.json().keys() == shown.keys()
