"""Pages of other origins: none may read an answer, unless the operator names its origin."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from httpx2 import Response
from starlette.testclient import TestClient

from service.core.errors import QueueFull
from service.core.metrics import Metrics
from service.features.keys.adapter import identify
from service.features.keys.keys import new_key, read_keys
from service.features.keys.rates import Rates
from service.http.access import AccessTable, needs
from service.http.guard import Guard
from service.limits.admission import Admission
from service.settings import Settings
from tests.service.conftest import running_app
from tests.service.features.keys.test_access import EXPLAIN, PHOTO, PNG, SECURITY, bearer
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

pytestmark = pytest.mark.contract
OURS = "https://app.test"
OTHERS = ["https://evil.test", "https://app.test.evil.test", "http://app.test", "null", "*", ""]
ALLOW = "access-control-allow-origin"


@pytest.fixture(scope="module", params=[(), (OURS, "https://two.test")], ids=["closed", "open"])
def origins(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture(scope="module")
def secret_and_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    secret, entry = new_key("page", ["explain"], None)
    file.write_text(entry)
    return secret, file


@pytest.fixture(scope="module")
def served(origins: tuple[str, ...], secret_and_file: tuple[str, Path]) -> Iterator[TestClient]:
    settings = Settings(keys=secret_and_file[1], cors_origins=origins)
    with running_app(settings, [FRAGILE]) as client:
        yield client


def answers(client: TestClient, origin: str, key: str) -> list[Response]:
    """To a page of that origin: what it asks for, with and without a key, and what is not there."""
    said = {"Origin": origin}
    return [
        client.get("/healthz", headers=said),
        client.get("/v1/models", headers=said),
        client.get("/v1/models", headers={**said, **bearer(key)}),
        client.post(EXPLAIN, content=PHOTO, headers={**said, **PNG, **bearer(key)}),
        client.get("/nothing", headers={**said, **bearer(key)}),
    ]


def preflight(client: TestClient, origin: str, method: str, headers: str) -> Response:
    asked = {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": headers,
    }
    return client.options(EXPLAIN, headers=asked)


@pytest.mark.parametrize("origin", [OURS, *OTHERS])
def test_an_answer_is_open_to_the_origins_named_and_closed_to_others(
    served: TestClient, origins: tuple[str, ...], secret_and_file: tuple[str, Path], origin: str
) -> None:
    found = answers(served, origin, secret_and_file[0])
    assert [each.status_code for each in found] == [200, 401, 200, 200, 404]
    for each in found:
        assert each.headers.get(ALLOW) == (origin if origin in origins else None)
        assert "access-control-allow-credentials" not in each.headers
        if origins:  # caches shall not give one origin's answer to another
            assert "Origin" in each.headers["vary"]
    check(found[1], 401, "unauthorized")
    if origin in origins:
        exposed = found[3].headers["access-control-expose-headers"]
        for name in ("ETag", "Retry-After", "Server-Timing", "X-Request-ID"):
            assert name in exposed


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_preflight_needs_no_key_where_its_origin_is_named(
    served: TestClient, origins: tuple[str, ...], method: str
) -> None:
    sent = "authorization, content-type, x-api-key, x-request-id, if-none-match"
    response = preflight(served, OURS, method, sent)
    if not origins:
        check(response, 401, "unauthorized")
        assert ALLOW not in response.headers
        return
    assert response.status_code == 200
    assert response.headers[ALLOW] == OURS
    assert method in response.headers["access-control-allow-methods"]
    assert set(sent.split(", ")) <= {
        name.strip().lower() for name in response.headers["access-control-allow-headers"].split(",")
    }


def test_other_preflights_are_refused(served: TestClient) -> None:
    for origin, method, headers in (
        *((other, "POST", "content-type") for other in OTHERS),
        (OURS, "PUT", "x-api-key"),
        (OURS, "POST", "x-forwarded-for"),
    ):
        response = preflight(served, origin, method, headers)
        assert response.status_code in (400, 401)
        assert origin == OURS or ALLOW not in response.headers


def test_the_answer_to_a_preflight_is_as_careful_as_any_other(served: TestClient) -> None:
    for origin in (OURS, OTHERS[0]):
        response = preflight(served, origin, "POST", "x-api-key")
        for name, value in SECURITY.items():
            assert response.headers.get(name) == value


def test_a_full_service_asks_for_a_key_first_and_can_be_read_by_the_page(
    served: TestClient, origins: tuple[str, ...], secret_and_file: tuple[str, Path]
) -> None:
    """A stranger does not learn which model is busy; a page that may ask can read Retry-After."""

    def ask(**headers: str) -> Response:
        return served.post(EXPLAIN, content=PHOTO, headers={"Origin": OURS, **PNG, **headers})

    app: Any = served.app
    with app.state.admission.hold(FRAGILE.name, 10_000, costly=0):
        if origins:
            check(ask(), 401, "unauthorized")
        else:
            check(ask(), 403, "forbidden", "GRADCAM_CORS_ORIGINS")
        full = ask(**bearer(secret_and_file[0]))
    check(full, 429, "queue-full", "10000 images are in progress")
    assert int(full.headers["retry-after"]) >= 1
    assert full.headers.get(ALLOW) == (OURS if OURS in origins else None)
    if origins:
        assert "Retry-After" in full.headers["access-control-expose-headers"]


@needs("explain", work=True)
async def explain(model: str) -> None:
    pass


@pytest.mark.parametrize(
    ("keys", "headers", "early"),
    [
        (False, [], True),
        (False, [(b"origin", b"https://app.test")], False),
        (False, [(b"sec-fetch-site", b"cross-site")], False),
        (True, [], False),
        (True, [(b"x-api-key", b"wrong")], False),
        (True, [(b"x-api-key", b"right")], True),
        (True, [(b"authorization", b"Bearer right")], True),
        (True, [(b"x-api-key", b"right"), (b"origin", OURS.encode())], False),
    ],
)
def test_who_is_refused_before_the_service_hears_of_it(
    secret_and_file: tuple[str, Path],
    keys: bool,
    headers: list[tuple[bytes, bytes]],
    early: bool,
) -> None:
    secret, file = secret_and_file
    admission = Admission(1, metrics=Metrics())
    sent = [(name, value.replace(b"right", secret.encode())) for name, value in headers]
    router = APIRouter()
    router.post("/v1/models/{model}:explain")(explain)
    guard = Guard(
        table=AccessTable(router.routes),
        identify=partial(identify, read_keys(file), Rates()) if keys else None,
        admission=admission,
    )
    with admission.hold("m", 1, costly=0):
        if early:
            with pytest.raises(QueueFull):
                guard.let_in_early(b"/v1/models/%6D:explain", sent)
        else:
            assert guard.let_in_early(b"/v1/models/m:explain", sent) is None
