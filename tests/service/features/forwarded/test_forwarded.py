"""The service behind a proxy that publishes it under another host, scheme and path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2
import pytest
from starlette.testclient import TestClient

from bench.rolling import CONFIGURATION, NGINX, nginx
from service.app import create_app
from service.core.errors import ConfigError
from service.features.keys.keys import new_key
from service.http.access import flat
from service.settings import Settings
from tests.service.conftest import encoded, noise, wait_until_ready
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE
from tests.service.live import ROOT, serving

PROXY, STRANGER = "10.1.2.3", "192.0.2.1"
PHOTO = encoded(noise(8, 8))
PNG = {"Content-Type": "image/png"}
PUBLIC = {
    "X-Forwarded-Host": "maps.example",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Prefix": "/team/xai",
}


@contextmanager
def behind(peer: str, folder: Path, **given: Any) -> Iterator[TestClient]:
    """The service, asked from an address."""
    settings = Settings.read({"GRADCAM_JOBS": str(folder)}, **given)
    app = create_app(settings, [FRAGILE])
    with TestClient(app, client=(peer, 50_000), follow_redirects=False) as client:
        wait_until_ready(client)
        yield client


TRUSTING = {"trusted_proxies": "10.0.0.0/8,::1", "hosts": "maps.example"}


@pytest.fixture
def trusting(tmp_path: Path) -> dict[str, Any]:
    return {"folder": tmp_path, **TRUSTING}


@pytest.fixture(scope="module")
def behind_a_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with behind(PROXY, tmp_path_factory.mktemp("jobs"), **TRUSTING) as client:
        yield client


def redirected(client: TestClient, **headers: str) -> str:
    answer = client.get("/v1/models/", headers=headers)
    assert answer.status_code == 307
    return str(answer.headers["location"])


def documented(client: TestClient, headers: dict[str, str], prefix: str) -> None:
    """The page of the API's documentation loads what it consists of."""
    page = client.get("/docs", headers=headers).text
    assets = re.findall(r'(?:href|src)="([^"]+)"', page)
    (document,) = re.findall(r"url: '([^']+)'", page)
    assert len(assets) == 3
    for address in (*assets, document):
        assert address.startswith(f"{prefix}/")
        answer = client.get(address.removeprefix(prefix), headers=headers)
        assert answer.status_code == 200
        assert len(answer.content) > 500
    servers = client.get("/openapi.json", headers=headers).json().get("servers", [])
    assert servers == ([{"url": prefix}] if prefix else [])


@pytest.mark.contract
def test_a_root_path_is_in_front_of_every_address(tmp_path: Path) -> None:
    with behind(STRANGER, tmp_path, root_path="/team/xai/") as client:
        documented(client, {}, "/team/xai")
        assert redirected(client) == "http://localhost/team/xai/v1/models"
        answer = client.post(
            "/v1/models/fragile:explain", content=PHOTO, headers={**PNG, "Accept": "image/png"}
        )
        assert answer.status_code == 200
        check(client.get("/nothing"), 404, "unknown-route", "at /nothing")
        check(client.get("/v1/models/fragile:explain"), 405, "method-not-allowed", "POST")
        assert client.head("/v1/models").status_code == 200
        assert "/v1/models/{model}:explain" in client.get("/metrics").text


def test_a_root_path_like_one_of_the_service_hides_nothing(tmp_path: Path) -> None:
    with behind(STRANGER, tmp_path, root_path="/v1") as client:
        assert client.get("/v1/models").json() == {"models": ["fragile"]}
        assert redirected(client) == "http://localhost/v1/v1/models"
        documented(client, {}, "/v1")


def test_the_location_and_the_next_page_of_jobs_have_the_prefix(tmp_path: Path) -> None:
    with behind(STRANGER, tmp_path, root_path="/team/xai") as client:
        for name in "ab":
            files = {"image": (f"{name}.png", PHOTO, "image/png")}
            made = client.post("/v1/jobs", params={"model": "fragile"}, files=files)
            assert made.status_code == 202, made.text
            location = made.headers["location"]
            assert location == f"/team/xai/v1/jobs/{made.json()['id']}"
            assert client.get(location.removeprefix("/team/xai")).status_code == 200
        following = client.get("/v1/jobs?limit=1").json()["next"]
        assert following.startswith("/team/xai/v1/jobs?")
        assert client.get(following.removeprefix("/team/xai")).status_code == 200


@pytest.mark.contract
def test_a_trusted_proxy_says_where_the_service_is(trusting: dict[str, Any]) -> None:
    with behind(PROXY, **trusting) as client:
        assert redirected(client, **PUBLIC) == "https://maps.example/team/xai/v1/models"
        documented(client, PUBLIC, "/team/xai")
        own = {**PNG, **PUBLIC, "Origin": "https://maps.example"}
        explain = "/v1/models/fragile:explain"
        assert client.post(explain, content=PHOTO, headers=own).status_code == 200
        foreign = {**own, "Origin": "http://localhost"}  # the name behind the proxy
        check(client.post(explain, content=PHOTO, headers=foreign), 403, "forbidden")


def test_the_host_that_a_trusted_proxy_says_is_judged(trusting: dict[str, Any]) -> None:
    with behind(PROXY, **trusting) as client:
        refused = client.get("/v1/models", headers={**PUBLIC, "X-Forwarded-Host": "evil.example"})
        check(refused, 421, "misdirected", "'evil.example'")
        upstream = {**PUBLIC, "Host": "upstream"}
        assert client.get("/v1/models", headers=upstream).status_code == 200


@pytest.mark.parametrize("peer", [STRANGER, "testclient", "2001:db8::1"])
def test_nobody_else_says_where_the_service_is(trusting: dict[str, Any], peer: str) -> None:
    with behind(peer, **trusting) as client:
        assert redirected(client, **PUBLIC) == "http://localhost/v1/models"
        documented(client, PUBLIC, "")
        hidden = {"Host": "evil.example", "X-Forwarded-Host": "maps.example"}
        check(client.get("/v1/models", headers=hidden), 421, "misdirected", "'evil.example'")


def test_nobody_is_trusted_unless_named(tmp_path: Path) -> None:
    with behind("127.0.0.1", tmp_path) as client:
        assert redirected(client, **PUBLIC) == "http://localhost/v1/models"


@pytest.mark.parametrize("peer", ["::1", "::ffff:10.9.9.9"])
def test_addresses_of_either_version_are_trusted(trusting: dict[str, Any], peer: str) -> None:
    with behind(peer, **trusting) as client:
        assert redirected(client, **PUBLIC) == "https://maps.example/team/xai/v1/models"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Forwarded-Prefix", "team/xai"),
        ("X-Forwarded-Prefix", "//evil.example"),
        ("X-Forwarded-Prefix", "/a/../b"),
        ("X-Forwarded-Prefix", "/a//b"),
        ("X-Forwarded-Prefix", "https://evil.example/"),
        ("X-Forwarded-Prefix", '/"><script>'),
        ("X-Forwarded-Prefix", "/a%2fb"),
        ("X-Forwarded-Prefix", "/" + "a" * 201),
        ("X-Forwarded-Prefix", ""),
        ("X-Forwarded-Host", "maps.example, evil.example"),
        ("X-Forwarded-Host", "user@maps.example"),
        ("X-Forwarded-Host", "maps.example/path"),
        ("X-Forwarded-Host", ""),
        ("X-Forwarded-Proto", "javascript"),
        ("X-Forwarded-Proto", "https, http"),
    ],
)
def test_what_is_no_host_scheme_or_path_is_ignored(
    behind_a_proxy: TestClient, name: str, value: str
) -> None:
    assert redirected(behind_a_proxy, **{name: value}) == "http://localhost/v1/models"


def test_a_header_that_comes_twice_is_ignored(trusting: dict[str, Any]) -> None:
    with behind(PROXY, **trusting) as client:
        twice = [("X-Forwarded-Host", "maps.example"), ("X-Forwarded-Host", "evil.example")]
        answer = client.get("/v1/models/", headers=twice)
        assert answer.headers["location"] == "http://localhost/v1/models"


def test_the_guard_sees_the_path_of_the_service(tmp_path: Path) -> None:
    """A prefix neither opens an address nor closes one."""
    file = tmp_path / "keys.toml"
    secret, entry = new_key("x", ["explain"], None)
    file.write_text(entry)
    for prefix in ("/healthz", "/studio", "/v1/models"):
        with behind(STRANGER, tmp_path / "jobs", root_path=prefix, keys=file) as client:
            for path in ("/", "/healthz"):
                assert client.get(path).status_code == 200
            for path in ("/v1/models", "/docs", "/style.css", "/models"):
                check(client.get(path), 401, "unauthorized")
            key = {"X-API-Key": secret}
            removed = client.delete("/v1/models/fragile", headers=key)
            check(removed, 403, "forbidden", "needs admin")


@pytest.mark.parametrize(
    ("name", "prefix"), [("nginx.conf", ""), ("nginx-prefix.conf", "/team/xai")]
)
def test_nginx_lets_through_the_bodies_that_the_service_takes(name: str, prefix: str) -> None:
    """2 GB where the body is written to the disk as it arrives, and not to nginx's disk before."""
    site = CONFIGURATION.with_name(name).read_text()
    default = size_in(site.partition("location")[0])
    located = re.findall(r"location ~ (\S+) \{([^}]*)\}", site)
    settings = Settings()
    for route in flat(create_app(settings, []).routes):
        path, handler = prefix + getattr(route, "path", ""), getattr(route, "endpoint", None)
        if handler is None or "POST" not in getattr(route, "methods", ()):
            continue
        own = [block for pattern, block in located if re.search(pattern, path)]
        if handler.access.streams:
            assert size_in(own[0]) >= settings.max_job_bytes, path
            assert "proxy_request_buffering off;" in own[0]
        else:
            assert own == [], path
    assert settings.max_body_bytes <= default < 1.1 * settings.max_body_bytes
    assert len(located) == 1


def size_in(block: str) -> int:
    ((number, unit),) = re.findall(r"client_max_body_size (\d+)([mg]);", block)
    return int(number) << {"m": 20, "g": 30}[unit]


@pytest.mark.slow
@pytest.mark.skipif(NGINX is None, reason="needs nginx")
def test_the_documented_configuration_of_nginx(tmp_path: Path) -> None:
    example = CONFIGURATION.with_name("nginx-prefix.conf")
    assert f"```nginx\n{example.read_text()}```" in (ROOT / "docs" / "deployment.md").read_text()
    environment = dict(re.findall(r"(GRADCAM_\w+)=([\w.]+\w)", example.read_text()))
    assert {*environment} == {"GRADCAM_TRUSTED_PROXIES", "GRADCAM_HOSTS"}
    host = {"Host": environment["GRADCAM_HOSTS"]}
    with (
        serving(GRADCAM_JOBS=str(tmp_path), **environment) as (_, http),
        nginx([http.base_url.port or 0], example, "/team/xai") as address,
        httpx2.Client(headers=host, timeout=60) as public,
    ):

        def get(path: str, **headers: str) -> httpx2.Response:
            return public.get(urljoin(f"{address}/", path), headers={**host, **headers})

        page = get("docs").text
        (document,) = re.findall(r"url: '([^']+)'", page)
        shown = get("", Accept="text/html").text
        assets = [*re.findall(r'(?:href|src)="([^"]+)"', page + shown), document]
        assert len(assets) >= 6, assets
        assert {get(each).status_code for each in assets if ":" not in each} == {200}
        assert get(document).json()["servers"] == [{"url": "/team/xai"}]
        redirect = get("v1/models/").headers["location"]
        assert redirect == f"http://{host['Host']}/team/xai/v1/models"
        made = public.post(
            f"{address}/v1/jobs", files={"image": ("a.png", PHOTO, "image/png")}, headers=host
        )
        assert made.status_code == 202, made.text
        assert made.headers["location"] == f"/team/xai/v1/jobs/{made.json()['id']}"
        assert get(made.headers["location"]).status_code == 200
        large = encoded(noise(1500, 1500))  # two of them are more than GRADCAM_MAX_BODY_BYTES
        files = [("image", (f"{each}.png", large, "image/png")) for each in "ab"]
        assert public.post(f"{address}/v1/jobs", files=files, headers=host).status_code == 202
        refused = public.post(
            f"{address}/v1/models/efficientnet-lite0:explain",
            content=2 * large,
            headers={**host, **PNG},
        )
        assert refused.status_code == 413
        assert "nginx" in refused.text
        path = f"{address}/v1/models/efficientnet-lite0:explain"
        for origin, status in ((f"http://{host['Host']}", 200), ("http://evil.example", 403)):
            headers = {**host, **PNG, "Origin": origin}
            assert public.post(path, content=PHOTO, headers=headers).status_code == status
        assert get("v1/models", Host="evil.example").status_code == 421


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"GRADCAM_TRUSTED_PROXIES": "10.0.0.1/8"}, "10.0.0.1/8: .* or 10.0.0.0/8"),
        ({"GRADCAM_TRUSTED_PROXIES": "nginx"}, "GRADCAM_TRUSTED_PROXIES=nginx: .*address"),
        ({"GRADCAM_ROOT_PATH": "team/xai"}, "GRADCAM_ROOT_PATH=team/xai: .* like /team/xai"),
        ({"GRADCAM_ROOT_PATH": "//evil.example"}, "a root path is like /team/xai"),
        ({"GRADCAM_ROOT_PATH": "/a/../b"}, "a root path is like /team/xai"),
        ({"GRADCAM_ROOT_PATH": '/a"><b'}, "a root path is like /team/xai"),
    ],
)
def test_a_mistake_names_the_setting_its_value_and_what_is_allowed(
    environment: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.read(environment)
