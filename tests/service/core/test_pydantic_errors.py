"""What pydantic refuses is told in our words, by the type of the mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from service.core.pydantic_errors import mistake
from tests.service.live import ROOT


class Small(BaseModel):
    name: str


def refuse(value: object) -> object:
    raise PydanticCustomError("ours", "it should be a song")


def told(kind: Any, value: object) -> str:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(kind).validate_python(value)
    return mistake(refused.value.errors()[0])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (bool, "perhaps", "it should be true or false"),
        (int, "many", "it should be a whole number"),
        (int, 1.5, "it should be a whole number"),
        (float, "much", "it should be a number"),
        (Annotated[float, Field(allow_inf_nan=False)], "nan", "it should be a finite number"),
        (Annotated[int, Field(ge=3)], 2, "it should be at least 3"),
        (Annotated[int, Field(lt=3)], 3, "it should be less than 3"),
        (str, 1, "it should be text"),
        (Annotated[str, Field(min_length=1)], "", "it should have at least 1 character"),
        (Annotated[str, Field(max_length=2)], "abc", "it should have at most 2 characters"),
        (Annotated[list[int], Field(min_length=1)], [], "it should have at least 1 item"),
        (Annotated[list[int], Field(max_length=2)], [1, 2, 3], "it should have at most 2 items"),
        (Literal["a", "b"], "c", "it should be 'a' or 'b'"),
        (list[int], 1, "it should be a list"),
        (dict[str, int], 1, "it should be an object"),
        (Small, 1, "it should be an object"),
        (Small, {}, "it is missing"),
        (Path, 1, "it should be a path"),
    ],
)
def test_a_mistake_in_words(kind: Any, value: object, expected: str) -> None:
    assert told(kind, value) == expected


def test_our_own_sentences_stay() -> None:
    from pydantic import PlainValidator

    assert told(Annotated[str, PlainValidator(refuse)], "x") == "it should be a song"


def test_nobody_reads_the_sentences_of_pydantic() -> None:
    """`first["msg"]` of a mistake of our own type is all that is left."""
    for file in ROOT.glob("service/**/*.py"):
        text = file.read_text()
        assert "Input should" not in text, file
        assert "Field required" not in text, file
