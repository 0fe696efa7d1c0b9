"""Reading of JSON that strangers send. Every way into the service reads it with these functions.

The elements are counted before the text is parsed, because each of them takes more memory than its
text: ten megabytes of `[],` would become gigabytes of objects. pydantic's parser refuses texts that
are nested deeper than 200 times and numbers of more than 4,300 digits.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from service.core.errors import BodyTooLarge, MalformedRequest

MOST_ELEMENTS: Final = 100_000
"""Maximum count of commas and opening brackets in one text. Images and arrays are texts in base64
there, so that a request of a thousand images has some ten thousand, and a job of 30,000 addresses
of images 100,000."""
Schema = TypeVar("Schema", bound=BaseModel)


def read_json(text: bytes | str, *, what: str = "the body") -> Any:
    """Parse JSON.

    Args:
        what: what the text is, for the errors' sentences.

    Raises:
        BodyTooLarge: if it has more elements than `MOST_ELEMENTS`.
        MalformedRequest: if it is not JSON, or is nested too deeply.
    """
    _require_few_elements(text, MOST_ELEMENTS, what)
    try:
        return from_json(text)
    except ValueError as error:
        raise MalformedRequest(f"{what} is not JSON: {error}"[:390]) from None


def validate_json(
    schema: type[Schema], text: bytes, *, most: int = MOST_ELEMENTS, strict: bool | None = None
) -> Schema:
    """Parse JSON into an object of a schema.

    Args:
        most: maximum number of elements.
        strict: whether pydantic converts no value; None leaves it to the schema.

    Raises:
        BodyTooLarge: if it has more elements than `most`.
        MalformedRequest: if it is not JSON, or is nested too deeply.
        ValidationError: if it is JSON, and not of the schema.
    """
    _require_few_elements(text, most, "the body")
    try:
        return schema.model_validate_json(text, strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] != "json_invalid":
            raise
        raise MalformedRequest(f"the body is not JSON: {first['ctx']['error']}") from None


def _require_few_elements(text: bytes | str, most: int, what: str) -> None:
    if len(text) <= most:
        return
    signs: tuple[Any, ...] = (",", "[", "{") if isinstance(text, str) else (b",", b"[", b"{")
    count = sum(map(text.count, signs))
    if count > most:
        raise BodyTooLarge(
            f"{what} has {count} elements of JSON, and at most {most} are allowed; send images as "
            "files in base64, and arrays as raw bytes"
        )
