"""Which hosts and which web pages a request may come through."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.core.errors import ConfigError
from service.features.keys.keys import new_key
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

pytestmark = pytest.mark.contract
EXPLAIN = "/v1/models/fragile:explain"
PNG = {"Content-Type": "image/png"}
PHOTO = encoded(noise(8, 8))
EVIL = "http://evil.example"
OUR_PAGE = "https://page.example"


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service without keys that has names of its own, and a page that may ask."""
    settings = Settings(
        hosts=("gradcam", "*.maps.example"),
        cors_origins=(OUR_PAGE,),
        jobs=tmp_path_factory.mktemp("jobs"),
    )
    with running_app(settings, [FRAGILE]) as client:
        yield client


@pytest.fixture(scope="module")
def with_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, str]]:
    """A service with keys, and a key."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    secret, entry = new_key("page", ["explain"], None)
    file.write_text(entry)
    with running_app(Settings(keys=file), [FRAGILE]) as client:
        yield client, secret


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8000",
        "127.0.0.1",
        "192.0.2.7:8000",
        "[::1]",
        "[2001:db8::1]:8000",
        "gradcam:8000",
        "GradCam.",
        "a.maps.example",
        "a.b.maps.example:443",
    ],
)
def test_names_of_the_service_are_answered(open_to_all: TestClient, host: str) -> None:
    assert open_to_all.get("/v1/models", headers={"Host": host}).status_code == 200


FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "maps.example",
    "evilmaps.example",
    "gradcam.evil.example",
    "a.maps.example@evil.example",
    "[evil.example]",
    "127.0.0.1/evil.example",
    "",
]


@pytest.mark.parametrize("host", FOREIGN)
def test_foreign_names_are_misdirected(open_to_all: TestClient, host: str) -> None:
    """DNS rebinding: a page that is reached by a name of its owner is of the same origin."""
    own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/v1/jobs"),
        ("GET", "/"),
        ("GET", "/healthz/"),
        ("DELETE", "/v1/jobs/x?purge=true"),
        ("POST", EXPLAIN),
    ):
        refused = open_to_all.request(method, path, headers=own)
        check(refused, 421, "misdirected", "GRADCAM_HOSTS", repr(host))


def test_one_foreign_name_beside_one_of_the_service_is_misdirected(open_to_all: TestClient) -> None:
    for pair in (["localhost", "evil.example"], ["evil.example", "localhost"]):
        refused = open_to_all.get("/v1/models", headers=[("Host", host) for host in pair])
        check(refused, 421, "misdirected", "'evil.example'")


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"]
)
def test_monitoring_asks_under_any_name(open_to_all: TestClient, path: str) -> None:
    assert open_to_all.get(path, headers={"Host": "pod-7.internal"}).status_code == 200


def test_a_service_with_keys_has_every_name(with_keys: tuple[TestClient, str]) -> None:
    client, secret = with_keys
    found = client.get("/v1/models", headers={"Host": "any.example", "X-API-Key": secret})
    assert found.status_code == 200


CALLS = [
    ("POST", EXPLAIN),
    ("POST", "/v1/models/fragile:predict"),
    ("POST", "/v1/jobs"),
    ("POST", "/v1/audits"),
    ("DELETE", "/v1/jobs/x?purge=true"),
    ("POST", "/v2/models/fragile/infer"),
    ("POST", "/v2/repository/index"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize(
    "said",
    [
        {"Origin": EVIL},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site", "Origin": EVIL},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "of tomorrow"},
    ],
)
def test_pages_of_other_origins_change_and_compute_nothing(
    open_to_all: TestClient, method: str, path: str, said: dict[str, str]
) -> None:
    refused = open_to_all.request(method, path, content=PHOTO, headers={**PNG, **said})
    assert refused.status_code == 403
    assert "GRADCAM_CORS_ORIGINS" in refused.json()["error"]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"Origin": "http://localhost"},
        {"Origin": "https://localhost", "Sec-Fetch-Site": "same-origin"},
        {"Origin": EVIL, "Sec-Fetch-Site": "same-origin"},  # a page cannot say so
        {"Sec-Fetch-Site": "none"},
        {"Origin": OUR_PAGE},
        {"Origin": OUR_PAGE, "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_ordinary_callers_and_named_pages_are_answered(
    open_to_all: TestClient, said: dict[str, str]
) -> None:
    answer = open_to_all.post(EXPLAIN, content=PHOTO, headers={**PNG, **said})
    assert answer.status_code == 200
    named = said.get("Origin") == OUR_PAGE
    assert answer.headers.get("access-control-allow-origin") == (OUR_PAGE if named else None)


def test_pages_may_read_what_the_browser_lets_them(open_to_all: TestClient) -> None:
    """A link to the service leads to it; without CORS, a script cannot read the answer."""
    for said in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": EVIL}):
        answer = open_to_all.get("/v1/models", headers=said)
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_a_foreign_page_cannot_use_the_key_that_a_browser_sends_by_itself(
    with_keys: tuple[TestClient, str],
) -> None:
    """Browsers repeat Basic credentials for every page; other headers only after a preflight."""
    client, secret = with_keys
    basic = "Basic " + base64.b64encode(f":{secret}".encode()).decode()
    foreign = {**PNG, "Origin": EVIL, "Sec-Fetch-Site": "cross-site"}
    refused = client.post(EXPLAIN, content=PHOTO, headers={**foreign, "Authorization": basic})
    check(refused, 403, "forbidden", EVIL, "GRADCAM_CORS_ORIGINS")
    for explicit in ({"X-API-Key": secret}, {"Authorization": f"Bearer {secret}"}):
        answer = client.post(EXPLAIN, content=PHOTO, headers={**foreign, **explicit})
        assert answer.status_code == 200


def test_refusals_are_counted_and_take_no_place(open_to_all: TestClient) -> None:
    before = open_to_all.get("/metrics").text
    open_to_all.post(EXPLAIN, content=PHOTO, headers={**PNG, "Origin": EVIL})
    open_to_all.get("/v1/models", headers={"Host": "evil.example"})
    after = open_to_all.get("/metrics").text
    for reason in ("host", "origin"):
        line = f'gradcam_rejected_total{{reason="{reason}"}}'
        counts = [
            float(each.rpartition(" ")[2])
            for text in (before, after)
            for each in text.splitlines()
            if each.startswith(line)
        ]
        assert counts[-1] - (counts[0] if len(counts) > 1 else 0) == 1
    assert open_to_all.app.state.admission.at_rest  # type: ignore[attr-defined]


def test_every_name_is_answered_where_the_operator_says_so(tmp_path: Path) -> None:
    with running_app(Settings(hosts=("*",), jobs=tmp_path), [FRAGILE]) as client:
        assert client.get("/v1/models", headers={"Host": "any.example"}).status_code == 200


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"GRADCAM_HOSTS": "app.example:80"}, "app.example:80: a host is like app.example"),
        ({"GRADCAM_HOSTS": "a,*x.example"}, r"a host is like .* or \*.app.example"),
    ],
)
def test_a_mistake_names_the_setting_its_value_and_what_is_allowed(
    environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.read(environment)
