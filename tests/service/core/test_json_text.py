"""JSON of strangers: what is not JSON, is nested too deeply or has too many elements."""

from __future__ import annotations

import tracemalloc

import pytest
from pydantic import BaseModel, ValidationError

from service.core import json_text
from service.core.errors import BodyTooLarge, MalformedRequest
from service.core.json_text import MOST_ELEMENTS, read_json, validate_json


class Point(BaseModel):
    x: int


def test_json_is_read() -> None:
    assert read_json(b'{"a": [1, null, "b"]}') == {"a": [1, None, "b"]}
    assert read_json("[]") == []
    assert validate_json(Point, b'{"x": 1}') == Point(x=1)
    with pytest.raises(ValidationError):
        validate_json(Point, b'{"x": "1"}', strict=True)


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 10_000, b"9" * 5000])
def test_what_is_not_json(text: bytes) -> None:
    with pytest.raises(MalformedRequest, match="explain_parameters is not JSON"):
        read_json(text, what="explain_parameters")
    with pytest.raises(MalformedRequest, match="the body is not JSON"):
        validate_json(Point, text)


@pytest.mark.parametrize("element", [b"[],", b"0,", b"{},", b'"",'])
def test_elements_are_counted_before_they_are_made(element: bytes) -> None:
    text = b'{"x":[' + element * MOST_ELEMENTS + b"0]}"
    tracemalloc.start()
    with pytest.raises(BodyTooLarge, match="at most 100000 are allowed"):
        read_json(text)
    with pytest.raises(BodyTooLarge, match="at most 7 are allowed"):
        validate_json(Point, text, most=7)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_the_largest_number_of_elements_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MOST_ELEMENTS", 6)
    assert read_json("[1,2,3,[{}]]") == [1, 2, 3, [{}]]
    with pytest.raises(BodyTooLarge, match="7 elements"):
        read_json("[1,2,3,[{}],4]")
