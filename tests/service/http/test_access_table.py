"""Scopes belong to routes: every route declares its access, and nothing is reached without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.routing import Match
from starlette.testclient import TestClient
from starlette.types import Scope

from service.app import create_app
from service.features.keys.keys import new_key
from service.features.studio.routes import PATHS
from service.http.access import AccessTable, flat, needs
from service.settings import Settings
from tests.service.conftest import running_app
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

MODES: dict[str, dict[str, str]] = {
    "plain": {},
    "sagemaker": {"GRADCAM_PLATFORM": "sagemaker"},
    "sagemaker, several models": {"SAGEMAKER_MULTI_MODEL": "true"},
    "vertex": {"AIP_HTTP_PORT": "8080"},
    "azure": {"AZUREML_MODEL_DIR": "/nowhere"},
    "kserve": {"GRADCAM_PLATFORM": "kserve"},
}
OPEN = {"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready", *PATHS}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "ODD")
ODD = ("", "*", "/", "//", "/v1/models\n", "/healthz\n", "/healthz/", "/v2/models/a/b/infer", "/é")


@pytest.mark.parametrize("mode", MODES)
def test_every_route_declares_its_access(mode: str) -> None:
    """Making the app raises if one does not. A path that is not open is closed to strangers."""
    app = create_app(Settings.read(MODES[mode]), [])
    table, routes = AccessTable(app.routes), list(flat(app.routes))
    assert len(routes) > 40
    open_paths = set()
    for route in routes:
        path = getattr(route, "path_format", "")
        for method in getattr(route, "methods", None) or {"GET"}:
            found = table.lookup(method, path.replace("{path}", "x"))
            assert found, path
            if found[0].scope == "open":
                open_paths.add(path)
            if method not in ("GET", "HEAD") and path != "/v2/repository/index":
                assert found[0].scope in ("explain", "admin"), path
    assert open_paths == OPEN


@pytest.mark.parametrize("mode", MODES)
def test_the_table_and_the_router_choose_the_same_route(mode: str) -> None:
    app = create_app(Settings.read(MODES[mode]), [])
    table, routes = AccessTable(app.routes), list(flat(app.routes))
    paths = {
        getattr(route, "path_format", "").replace("{", "").replace("}", "") for route in routes
    }
    for path in [*paths, *(f"{path}/" for path in paths), *(f"{path}/x" for path in paths), *ODD]:
        for method in METHODS:
            asked = "GET" if method == "HEAD" else method
            scope: Scope = {
                "type": "http",
                "path": path,
                "method": asked,
                "root_path": "",
                "headers": [],
            }
            chosen = [route for route in routes if route.matches(scope)[0] is Match.FULL]
            found = table.lookup(method, path)
            if not chosen:
                assert found is None, (method, path)
            elif found is None:  # the table may be stricter, because the guard then refuses
                assert path.endswith("\n") or path.startswith("/static-offline-docs"), path
            else:
                handler: Any = getattr(chosen[0], "endpoint", None) or getattr(
                    chosen[0], "app", None
                )
                assert handler.access == found[0], (method, path)


async def silent() -> None:
    pass


@needs("explain", work=True)
async def nameless() -> None:
    pass


@pytest.mark.parametrize(
    ("handler", "sentence"), [(silent, "declares no access"), (nameless, "has no {model}")]
)
def test_a_route_without_a_declaration_stops_the_start(handler: Any, sentence: str) -> None:
    outer, inner = APIRouter(), APIRouter()
    inner.post("/x")(handler)
    outer.include_router(inner)
    with pytest.raises(TypeError, match=rf"the route /x .*{sentence}"):
        AccessTable(outer.routes)


def test_a_fixed_path_is_answered_by_the_first_route_that_matches_it() -> None:
    router = APIRouter()

    @router.get("/a/{name}")
    @needs("read")
    async def first(name: str) -> None: ...

    @router.get("/a/b")
    @router.post("/a/b")
    @needs("admin")
    async def second() -> None: ...

    table = AccessTable(router.routes)
    assert [table.lookup(method, "/a/b") for method in ("GET", "HEAD", "POST", "PUT")] == [
        (needs("read")(first).access, None),  # type: ignore[attr-defined]
        (first.access, None),  # type: ignore[attr-defined]
        (second.access, None),  # type: ignore[attr-defined]
        None,
    ]


WORK = {
    "/v1/models/cat:explain": "cat",
    "/v1/models/c at:predict": "c at",
    "/v2/models/cat/infer": "cat",
    "/v2/models/cat/versions/1/infer": "cat",
}
NO_WORK = [
    "/v1/models/cat",
    "/v1/models/cat/classes:explain",
    "/v1/models/cat:delete",
    "/v2/models/cat/versions/1/x/infer",
    "/v1/models",
    "/v1/jobs",
    "*",
    "",
]


def test_work_on_a_model_is_known_by_its_route() -> None:
    table = AccessTable(create_app(Settings.read({}), []).routes)
    for path, model in WORK.items():
        found = table.lookup("POST", path)
        assert found
        assert (found[0].work, found[1]) == (True, model)
        assert table.lookup("GET", path) is None
    for path in NO_WORK:
        found = table.lookup("POST", path)
        assert found is None or (found[0].work, found[1]) == (False, None)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    made = {scope: new_key(scope, [scope], None) for scope in ("explain", "admin")}
    file.write_text("\n".join(entry for _, entry in made.values()))
    return {"file": str(file)} | {scope: secret for scope, (secret, _) in made.items()}


@pytest.fixture(scope="module")
def guarded(keys: dict[str, str]) -> Iterator[TestClient]:
    with running_app(Settings.read({"GRADCAM_KEYS": keys["file"]}), [FRAGILE]) as client:
        yield client


@pytest.mark.parametrize("scope", ["explain", "admin"])
def test_what_is_not_there_is_said_to_every_key_and_to_nobody_else(
    guarded: TestClient, keys: dict[str, str], scope: str
) -> None:
    key = {"X-API-Key": keys[scope]}
    for method, path in (
        ("POST", "/v1/models/fragile/explain"),
        ("DELETE", "/v1/models/fragile/x"),
        ("POST", "/models"),
        ("GET", "/models"),
        ("DELETE", "/models/fragile"),
        ("POST", "/models/fragile/invoke"),
        ("POST", "/v1/models%0A"),
        ("GET", "/nothing"),
        ("GET", "/studio/x"),
    ):
        check(guarded.request(method, path, headers=key), 404, "unknown-route", "/docs")
        check(guarded.request(method, path), 401, "unauthorized")
    for method, path, allowed in (
        ("DELETE", "/v1/models/fragile:explain", "POST"),
        ("PUT", "/v1/models", "GET, HEAD, POST"),
        ("POST", "/v1/models/fragile", "GET, HEAD, DELETE"),
        ("PUT", "/v1/jobs/x/results", "GET, HEAD"),
        ("POST", "/static-offline-docs/x", "GET, HEAD"),
    ):
        wrong = guarded.request(method, path, headers=key)
        check(wrong, 405, "method-not-allowed", f"does not answer {method}, only {allowed}")
        assert wrong.headers["allow"] == allowed
        assert guarded.request(method, path).status_code == 401


@pytest.mark.parametrize("verb", ["predict", "explain", "evaluate", "activations", "answer"])
def test_a_slash_in_place_of_the_colon_of_a_verb(
    guarded: TestClient, keys: dict[str, str], verb: str
) -> None:
    key = {"X-API-Key": keys["explain"]}
    wrong = guarded.post(f"/v1/models/fragile/{verb}", headers=key)
    check(wrong, 404, "unknown-route", f"did you mean /v1/models/fragile:{verb}?")


def test_reading_needs_any_key(guarded: TestClient, keys: dict[str, str]) -> None:
    for path in ("/metrics", "/openapi.json", "/v1/models/fragile", "/v2", "/v2/models/fragile"):
        for scope in ("explain", "admin"):
            answer = guarded.get(path, headers={"X-API-Key": keys[scope]})
            assert answer.status_code == 200, path
    index = guarded.post("/v2/repository/index", headers={"X-API-Key": keys["admin"]})
    assert index.status_code == 200


def test_jobs_may_be_larger_than_other_bodies(tmp_path: Path) -> None:
    """Both routes that write a body to the disk as it arrives, and no other."""
    given = {"GRADCAM_MAX_BODY_BYTES": "100", "GRADCAM_JOBS": str(tmp_path)}
    with running_app(Settings.read(given), [FRAGILE]) as client:
        kind = {"Content-Type": "application/zip"}
        image = {"Content-Type": "image/png"}
        for path, refused in (
            ("/v1/jobs", False),
            ("/v1/audits", False),
            ("/v1/models/fragile:explain", True),
            ("/v2/models/fragile/infer", True),
        ):
            answer = client.post(path, content=bytes(1000), headers=image if refused else kind)
            assert (answer.status_code == 413) == refused, path
