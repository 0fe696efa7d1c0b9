"""The guard of the core: what it checks, in which order, and what holds where nobody is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from starlette.datastructures import Headers

from service import app
from service.app import create_app
from service.core.errors import (
    ConfigError,
    Forbidden,
    QueueFull,
    RateLimited,
    Unauthorized,
    UnknownRoute,
)
from service.core.metrics import Metrics
from service.core.settings import CoreSettings
from service.features.keys.adapter import keys
from service.features.remote_images.adapter import remote_images
from service.http.access import AccessTable, Caller, Identify, needs
from service.http.adapter import Added, AppParts
from service.http.guard import Guard
from service.http.reception import Allowance
from service.limits.admission import Admission
from service.limits.counters import LocalCounts
from service.process.listener import listen
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

EXPLAIN = "/v1/models/m:explain"


@needs("explain", work=True)
async def explain(model: str) -> None:
    """A handler."""


@needs("open")
async def health() -> None:
    """A handler."""


class Known:
    """A feature that knows one caller, and what it was asked."""

    def __init__(self, *scopes: str, rate: int = 1_000) -> None:
        self.scopes = frozenset(scopes)
        self.left = rate
        self.counted = 0

    def identify(self, headers: Headers) -> Caller:
        if headers.get("name") != "ann":
            raise Unauthorized("say who you are")
        return Caller("ann", self.scopes, self.count)

    def count(self) -> None:
        self.counted += 1
        if self.counted > self.left:
            raise RateLimited("too often", retry_after=1)


@pytest.fixture
def counts() -> LocalCounts:
    return LocalCounts()


@pytest.fixture
def admission(counts: LocalCounts) -> Admission:
    return Admission(1, metrics=Metrics(), counts=counts)


def guard_of(identify: Identify | None, admission: Admission) -> Guard:
    router = APIRouter()
    router.post("/v1/models/{model}:explain")(explain)
    router.get("/healthz")(health)
    return Guard(table=AccessTable(router.routes), identify=identify, admission=admission)


def let_in(guard: Guard, name: str = "ann", method: str = "POST", path: str = EXPLAIN) -> Any:
    state: dict[str, Any] = {}
    guard.let_in(method, path, Headers({"name": name}), state)
    return state


def test_what_is_checked_first(admission: Admission, counts: LocalCounts) -> None:
    """Each refusal hides those after it: of the route, the scope, the place and the rate."""
    stranger, misplaced = Known("admin", rate=0), Known("explain", rate=0)
    with admission.hold("m", 1, costly=0):
        for path in (EXPLAIN, "/nothing"):
            with pytest.raises(Unauthorized):
                let_in(guard_of(stranger.identify, admission), "bob", path=path)
        with pytest.raises(Forbidden, match="the key 'ann' has the scope admin"):
            let_in(guard_of(stranger.identify, admission))
        with pytest.raises(QueueFull):
            let_in(guard_of(misplaced.identify, admission))
        assert (stranger.counted, misplaced.counted) == (0, 0)
    with pytest.raises(RateLimited):
        let_in(guard_of(misplaced.identify, admission))
    assert counts.total("places of m") == 0, "the refused request has left its place"


def test_what_is_not_there_counts_for_the_rate(admission: Admission) -> None:
    known = Known("explain", rate=1)
    guard = guard_of(known.identify, admission)
    with pytest.raises(UnknownRoute):
        let_in(guard, path="/nothing")
    with pytest.raises(RateLimited):
        let_in(guard, path="/nothing")


def test_what_is_told_of_a_caller(admission: Admission, counts: LocalCounts) -> None:
    known = Known("explain", "admin")
    guard = guard_of(known.identify, admission)
    state = let_in(guard)
    assert (state["key"], state["admin"], state["model"]) == ("ann", True, "m")
    assert counts.total("places of m") == 1
    assert "key" not in let_in(guard, "bob", "GET", "/healthz"), "nobody has to say who they are"
    assert known.counted == 1


def test_without_keys_everybody_may_explain_and_nobody_changes_the_models() -> None:
    new = {"name": "new", "source": "factory:tests.zoo.factories:tiny"}
    photo, kind = encoded(noise(8, 8)), {"Content-Type": "image/png"}
    settings = Settings(allowed_sources=("factory:*",))
    with running_app(settings, [FRAGILE]) as client:
        for headers in ({}, {"Authorization": "Bearer gradcam_any"}):
            refused = client.post("/v1/models", json=new, headers=headers)
            check(refused, 403, "forbidden", "scope 'admin'", "GRADCAM_KEYS")
            refused = client.delete("/v1/models/fragile", headers=headers)
            check(refused, 403, "forbidden", "scope 'admin'", "GRADCAM_KEYS")
        answer = client.post("/v1/models/fragile:explain", content=photo, headers=kind)
        assert answer.status_code == 200
        assert client.get("/v1/models").json() == {"models": ["fragile"]}


class Identifying(Settings):
    """Settings by which the callers are known."""

    def identifies_callers(self) -> bool:
        return True


def test_a_service_that_should_know_its_callers_and_does_not_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "ADAPTERS", ())
    create_app(Settings(), [])
    with pytest.raises(ConfigError, match="no feature here reads them"):
        create_app(Identifying(), [])


def test_two_ways_to_know_callers_are_a_mistake_and_neither_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def badges(parts: AppParts) -> Added:
        return Added(identify=lambda headers: Caller("bob", frozenset(), lambda: None))

    file = tmp_path / "keys.toml"
    file.write_text("")
    monkeypatch.setattr(app, "ADAPTERS", (keys, badges))
    create_app(Settings(), [])  # without a file of keys, the badges alone identify callers
    said = r"service\.features\.keys\.adapter\.keys and tests\..*\.badges identify callers"
    with pytest.raises(ConfigError, match=said):
        create_app(Settings(keys=file), [])


def test_two_ways_to_fetch_images_are_a_mistake_and_neither_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fetch_photo(url: str, allowance: Allowance) -> bytes:
        return encoded(noise(8, 8, 0))

    def archive(parts: AppParts) -> Added:
        return Added(fetch=fetch_photo)

    monkeypatch.setattr(app, "ADAPTERS", (remote_images, archive))
    create_app(Settings(), [])  # if no hosts are allowed, the archive alone fetches images
    said = r"service\.features\.remote_images\.adapter\.remote_images and .*\.archive fetch images"
    with pytest.raises(ConfigError, match=said):
        create_app(Settings(image_hosts=["photos.example"]), [])


def test_others_reach_a_service_only_if_it_knows_them_or_is_told_to_be_open() -> None:
    public = {"host": "0.0.0.0", "port": 0}
    for settings in (CoreSettings(**public), Settings(**public)):
        with pytest.raises(ConfigError, match=r"reached by others.*GRADCAM_KEYS.*--insecure"):
            listen(settings)
    for settings in (Identifying(**public), Settings(**public, insecure=True), Settings(port=0)):
        listen(settings).close()
