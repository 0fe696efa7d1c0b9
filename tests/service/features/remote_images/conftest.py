"""One site with TLS and two canaries for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.features.remote_images import fetch
from service.features.remote_images.fetch import is_public
from tests.service.features.remote_images.sites import (
    IMAGE,
    SITE,
    Canary,
    Page,
    Site,
    certificate,
    running,
)


@pytest.fixture(scope="session")
def canary() -> Iterator[Canary]:
    canary = Canary()
    yield canary
    canary.close()


@pytest.fixture(scope="session")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("site"), "images.test")


@pytest.fixture(scope="session")
def one_site(pem: Path) -> Iterator[Site]:
    with running(Site(pem)) as site:
        yield site


@pytest.fixture
def site(one_site: Site, pem: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """images.test, whose address passes for a public one and whose certificate is trusted."""
    monkeypatch.setattr(fetch, "is_public", lambda text: text == SITE or is_public(text))
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    one_site.begin({"/image": Page(IMAGE)})
    return one_site


@pytest.fixture(autouse=True)
def no_test_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "SECONDS", 5.0)
