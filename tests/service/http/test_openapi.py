"""openapi/openapi.json is what the app says, and the app does what it says."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection

import tests.serializers  # noqa: F401 - it registers them
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
    assert [operation["operationId"] for *_, operation in OPERATIONS] == [
        *("showPage", "checkHealth", "checkReadiness", "getMetrics"),
        *("listModels", "addModel", "getModel", "removeModel", "listLayers", "getDrift"),
        *("predict", "explain", "evaluate", "showActivations", "answer"),
        *("submitJob", "listJobs", "getJob", "cancelJob", "followJob"),
        *("listResults", "getResult", "downloadArchive", "getClusters"),
        *("submitAudit", "getAudit", "getReport"),
    ]

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


# A body that fits its schema may still not be an image, or ask for a form that Accept rules out.
CONFIG = {
    "parameters": {"path.model": "efficientnet-lite0"},
    "checks": {
        "positive_data_acceptance": {
            "expected-statuses": ["2xx", "304", "400", "403", "404", "406", "413", "415", "422"]
        },
        "negative_data_rejection": {
            "expected-statuses": ["400", "403", "404", "406", "413", "415", "422", "431"]
        },
    },
}
schema = schemathesis.openapi.from_dict(DOCUMENT, config=SchemathesisConfig.from_dict(CONFIG))


def has_list_of_one(case: Case[Any]) -> bool:
    """Whether a field of a form is a list of one value, which no form tells from the value."""
    fields = case.body if case.media_type == "multipart/form-data" else {}
    return isinstance(fields, dict) and any(
        isinstance(value, list) and len(value) == 1 for value in fields.values()
    )


@pytest.mark.slow
@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_app_keeps_to_it(case: Case[Any], address: str) -> None:
    alike: list[Any] = [negative_data_rejection] if has_list_of_one(case) else []
    response = case.call_and_validate(base_url=address, timeout=30, excluded_checks=alike)
    if response.status_code == 202:  # a job: of a costly method it would keep the model for minutes
        where = response.headers["location"][0]
        httpx2.delete(f"{address}{where}", params={"purge": "true"}, timeout=30)
