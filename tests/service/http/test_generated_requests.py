"""The app does what openapi/openapi.json says, whatever a request of the contract holds.

The requests of all operations are made when this file is imported, which takes seven seconds."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection

import tests.serializers  # noqa: F401 - it registers them
from tests.service.http.test_openapi import DOCUMENT

pytestmark = pytest.mark.slow

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


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_the_app_keeps_to_it(case: Case[Any], address: str) -> None:
    alike: list[Any] = [negative_data_rejection] if has_list_of_one(case) else []
    response = case.call_and_validate(base_url=address, timeout=30, excluded_checks=alike)
    if response.status_code == 202:  # a job: of a costly method it would keep the model for minutes
        where = response.headers["location"][0]
        httpx2.delete(f"{address}{where}", params={"purge": "true"}, timeout=30)
