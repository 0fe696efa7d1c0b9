from __future__ import annotations

import pytest

from service.core.errors import NotAcceptable
from service.http.responses import choose

OFFERS = ["application/json", "image/png", "image/jpeg"]


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("image/jpeg", "image/jpeg"),
        ("IMAGE/PNG", "image/png"),
        ("image/*", "image/png"),
        ("image/png;q=0.5, image/jpeg", "image/jpeg"),
        ("text/html, image/png;q=0.1", "image/png"),
        ("*/*;q=0.1, image/*", "image/png"),
        ("image/*, image/png;q=0", "image/jpeg"),
        ("application/json; charset=utf-8", "application/json"),
    ],
)
def test_the_best_offer_is_chosen(accept: str | None, expected: str) -> None:
    assert choose(accept, OFFERS) == expected


@pytest.mark.parametrize("accept", ["text/plain", "image/gif", "*/*;q=0", "image/png;q=x", "png"])
def test_what_cannot_be_answered_names_the_offers(accept: str) -> None:
    with pytest.raises(NotAcceptable, match="application/json, image/png, image/jpeg"):
        choose(accept, OFFERS)
