"""Who may do what, asked of the whole app: no key, a wrong one, the right one, too often."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.features.keys import keys as keys_module
from service.features.keys.keys import new_key
from service.features.studio.routes import PATHS
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE
from tests.waiting import until

pytestmark = pytest.mark.contract
EXPLAIN = "/v1/models/fragile:explain"
PNG = {"Content-Type": "image/png"}
PHOTO = encoded(noise(8, 8))
WHITE = encoded(noise(8, 8).point(lambda value: 255))
CALLERS: dict[str, tuple[list[str], str | None]] = {
    "explain": (["explain"], None),
    "admin": (["admin"], None),
    "both": (["explain", "admin"], None),
    "rated": (["explain"], "3/minute"),
    "rated-too": (["explain"], "3/minute"),
    "counted": (["explain"], "3/minute"),
}
SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.toml"


@pytest.fixture(scope="module")
def keys(file: Path) -> dict[str, str]:
    """Name → key, of those in the file."""
    made = {name: new_key(name, scopes, rate) for name, (scopes, rate) in CALLERS.items()}
    file.write_text("\n".join(entry for _, entry in made.values()))
    return {name: secret for name, (secret, _) in made.items()}


@pytest.fixture(scope="module")
def guarded(file: Path, keys: dict[str, str]) -> Iterator[TestClient]:
    with running_app(Settings(keys=file), [FRAGILE]) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def every_address(client: TestClient, key: str) -> list[tuple[str, str]]:
    """Method and path of all that the service answers, and of what it does not."""
    document = client.get("/openapi.json", headers=bearer(key)).json()
    found = [
        (method.upper(), path.replace("{model}", "fragile"))
        for path, methods in document["paths"].items()
        for method in methods
    ]
    page = client.get("/docs", headers=bearer(key)).text
    assets = re.findall(r'(?:href|src)="(/[^"]+)"', page)
    assert len(assets) == 3
    more = ["/", "/docs", "/docs/oauth2-redirect", "/openapi.json", "/metrics", "/nothing", *assets]
    return [*found, *(("GET", path) for path in more)]


HEALTH = {("GET", "/healthz"), ("GET", "/readyz")}
WITHOUT_A_KEY = {*HEALTH, *(("GET", path) for path in PATHS)}


def test_without_a_key_there_are_health_and_the_page_and_nothing_else(
    guarded: TestClient, keys: dict[str, str]
) -> None:
    addresses = every_address(guarded, keys["explain"])
    assert len(set(addresses)) >= 17
    assert set(addresses) >= {("POST", EXPLAIN), ("POST", "/v1/models"), *HEALTH}
    for method, path in addresses:
        for headers in ({}, bearer("gradcam_wrong"), {"X-API-Key": "wrong"}, basic("", "wrong")):
            response = guarded.request(method, path, headers=headers, content=PHOTO)
            if (method, path) in HEALTH:
                assert (response.status_code, response.json()) == (200, {"status": "ok"})
            elif (method, path) in WITHOUT_A_KEY:
                assert response.status_code == 200
            else:
                check(response, 401, "unauthorized", "Authorization: Bearer KEY", "X-API-Key")
                challenge = response.headers["www-authenticate"]
                assert "Bearer" in challenge
                assert "Basic realm=" in challenge  # so that a browser asks for it
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 401), ("/", 200)):
        assert guarded.head(path).status_code == status
    assert guarded.options(EXPLAIN).status_code == 401


@pytest.mark.parametrize(
    "path",
    [
        "/healthz/",
        "http://testserver//healthz",
        "/HEALTHZ",
        "/healthz/x",
        "/healthz;/",
        "/readyz/../v1/models",
        "/studio/",
        "/studio/x",
    ],
)
def test_nothing_that_looks_like_health_is_open(guarded: TestClient, path: str) -> None:
    assert guarded.get(path, follow_redirects=False).status_code == 401


def test_a_key_comes_in_any_of_three_headers(guarded: TestClient, keys: dict[str, str]) -> None:
    key = keys["explain"]
    for headers in (
        bearer(key),
        {"Authorization": f"bearer {key}"},
        {"X-API-Key": key},
        basic("", key),
        basic("whoever", key),
    ):
        assert guarded.get("/v1/models", headers=headers).json() == {"models": ["fragile"]}
        response = guarded.post(EXPLAIN, content=PHOTO, headers={**PNG, **headers})
        assert response.status_code == 200


def test_what_is_almost_a_key_is_none(
    guarded: TestClient, file: Path, keys: dict[str, str]
) -> None:
    key = keys["explain"]
    found = re.search(r'digest = "(sha256:(\w+))"', file.read_text())
    assert found
    wrong: list[dict[str, str]] = [
        {"Authorization": key},
        {"Authorization": f"Token {key}"},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {key}, {key}"},
        {"Authorization": f"Basic {key}"},
        {"Authorization": "Basic"},
        {"Authorization": "Basic " + base64.b64encode(key.encode()).decode()},
        {"Authorization": "Basic " + base64.b64encode(b"\xff:\xff").decode()},
        basic(key, ""),
        basic("", f"{key}\n"),
        {"X-API-Key": ""},
        {"X-API-Key": f"Bearer {key}"},
        {"X-API-Key": found[1]},
        bearer(found[2]),
        {**bearer("wrong"), "X-API-Key": key},
        {"Cookie": f"X-API-Key={key}"},
    ]
    for headers in wrong:
        check(guarded.get("/v1/models", headers=headers), 401, "unauthorized")
    for query in (f"?key={key}", f"?api_key={key}", f"?access_token={key}"):
        check(guarded.get(f"/v1/models{query}"), 401, "unauthorized")


@pytest.mark.parametrize("kind", [b"Bearer", b"Basic", b"X-API-Key"])
@pytest.mark.parametrize("value", [b"\xe9", "ключ".encode(), b"\xff\xfe", b"=", b"a"])
def test_bytes_of_any_kind_are_no_key(guarded: TestClient, kind: bytes, value: bytes) -> None:
    header = (kind, value) if kind == b"X-API-Key" else (b"Authorization", kind + b" " + value)
    check(guarded.get("/v1/models", headers=[header]), 401, "unauthorized")


def test_scopes_say_what_a_key_is_for(guarded: TestClient, keys: dict[str, str]) -> None:
    new = {"name": "new", "source": "factory:tests.zoo.factories:tiny"}
    for method, path in (
        ("POST", "/v1/models"),
        ("POST", "/v1/models/"),
        ("POST", "/v1/models?x=:explain"),
        ("DELETE", "/v1/models/fragile"),
        ("DELETE", "/v1/models/fragile/"),
    ):
        body = new if method == "POST" else None
        refused = guarded.request(method, path, json=body, headers=bearer(keys["explain"]))
        check(refused, 403, "forbidden", "the key 'explain'", "needs admin")
    for verb in ("explain", "predict", "activations"):
        headers = {**PNG, **bearer(keys["admin"])}
        refused = guarded.post(f"/v1/models/fragile:{verb}", content=PHOTO, headers=headers)
        check(refused, 403, "forbidden", "the key 'admin'", "scope admin", "needs explain")
    for path in ("/", "/docs", "/metrics", "/v1/models", "/v1/models/fragile/layers"):
        assert guarded.get(path, headers=bearer(keys["admin"])).status_code == 200
    # 'both' may: what is left to refuse is the source, and the name.
    both = bearer(keys["both"])
    check(guarded.post("/v1/models", json=new, headers=both), 403, "forbidden", "is not allowed")
    check(guarded.delete("/v1/models/other", headers=both), 404, "unknown-model")
    response = guarded.post(EXPLAIN, content=PHOTO, headers={**PNG, **both})
    assert response.status_code == 200


def test_a_rate_bounds_its_own_key_alone(guarded: TestClient, keys: dict[str, str]) -> None:
    def asked(name: str) -> list[int]:
        return [guarded.get("/v1/models", headers=bearer(keys[name])).status_code for _ in range(4)]

    assert asked("rated") == [200, 200, 200, 429]
    refused = guarded.post(EXPLAIN, content=PHOTO, headers={**PNG, **bearer(keys["rated"])})
    check(refused, 429, "rate-limited", "the key 'rated'", "3 per 1 minute")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert asked("rated-too") == [200, 200, 200, 429]
    assert asked("explain") == [200] * 4


def test_every_answer_has_the_headers_of_a_careful_one(
    guarded: TestClient, keys: dict[str, str]
) -> None:
    ann = bearer(keys["both"])
    image = {**PNG, **ann, "Accept": "image/png"}
    answers = [
        guarded.get("/healthz"),
        guarded.get("/", headers={**ann, "Accept": "text/html"}),
        guarded.get("/docs", headers=ann),
        guarded.get("/metrics", headers=ann),
        guarded.get("/static-offline-docs/swagger-ui.css", headers=ann),
        guarded.post(EXPLAIN, content=PHOTO, headers=image),
        guarded.get("/v1/models/", headers=ann, follow_redirects=False),
        guarded.post(EXPLAIN, content=b"", headers=image),
        guarded.get("/metrics"),
        guarded.get("/v1/models/x", headers=ann),
        guarded.get("/x", headers=ann),
        guarded.get(EXPLAIN, headers=ann),
        guarded.post(EXPLAIN, content=bytes(11_000_000), headers=image),
        guarded.post(EXPLAIN, content=WHITE, headers=image),
    ]
    statuses = [answer.status_code for answer in answers]
    assert statuses == [200, 200, 200, 200, 200, 200, 307, 400, 401, 404, 404, 405, 413, 500]
    for answer in answers:
        for name, value in SECURITY.items():
            assert answer.headers.get(name) == value, (answer.url, answer.status_code)
        assert answer.headers["x-request-id"]
    assert "frame-ancestors 'none'" in answers[1].headers["content-security-policy"]


def test_rejections_are_counted_under_names_of_ours(
    guarded: TestClient, keys: dict[str, str]
) -> None:
    def counted() -> dict[str, float]:
        text = guarded.get("/metrics", headers=bearer(keys["both"])).text
        found = re.findall(r'^gradcam_rejected_total\{reason="([^"]*)"\} (\S+)$', text, re.M)
        return {reason: float(value) for reason, value in found}

    before = counted()
    for turn in range(5):
        guarded.get(f"/secret-{turn}", headers=bearer(f"hostile-{turn}"))
    guarded.delete("/v1/models/hostile-name", headers=bearer(keys["explain"]))
    for _ in range(4):
        guarded.get("/v1/models", headers=bearer(keys["counted"]))
    after = counted()
    assert set(after) <= {"no key", "scope", "rate", "body too large"}
    assert after["no key"] - before.get("no key", 0) == 5
    assert after["scope"] - before.get("scope", 0) == 1
    assert after["rate"] - before.get("rate", 0) == 1
    text = guarded.get("/metrics", headers=bearer(keys["both"])).text
    assert 'gradcam_requests_total{method="any",route="unmatched",status="401"}' in text
    for unwanted in ("hostile", "secret-", *keys.values()):
        assert unwanted not in text


def test_a_changed_file_of_keys_counts_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "LOOK_SECONDS", 0.01)
    file = tmp_path / "keys.toml"
    old, old_entry = new_key("ann", ["explain"], "2/hour")
    new, new_entry = new_key("ann", ["explain"], "2/hour")
    late, late_entry = new_key("late", ["explain"], None)
    file.write_text(old_entry)
    with running_app(Settings(keys=file), [FRAGILE]) as client:

        def status(key: str) -> int:
            return client.get("/v1/models", headers=bearer(key)).status_code

        assert status(old) == 200
        file.write_text(f"{new_entry}\n{late_entry}expires = 2001-01-31\n")
        until(lambda: "expired" in client.get("/v1/models", headers=bearer(late)).text, 10)
        assert status(old) == 401
        assert [status(new), status(new)] == [200, 429]  # the rate is that of the name
        refused = client.get("/v1/models", headers=bearer(late))
        check(refused, 401, "unauthorized", "the key 'late' expired at 2001-01-31T00:00:00+00:00")
