"""Sentences for values that pydantic refused, chosen by the type of pydantic's error.

pydantic's own sentences may change with any release, and name its types rather than a caller's.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from cam.counts import counted

WORDS: Final = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such key",
    "none_required": "it should be left out",
    "bool_type": "it should be true or false",
    "bool_parsing": "it should be true or false",
    "int_type": "it should be a whole number",
    "int_parsing": "it should be a whole number",
    "int_parsing_size": "it should be a whole number of fewer digits",
    "int_from_float": "it should be a whole number",
    "float_type": "it should be a number",
    "float_parsing": "it should be a number",
    "finite_number": "it should be a finite number",
    "greater_than": "it should be greater than {gt}",
    "greater_than_equal": "it should be at least {ge}",
    "less_than": "it should be less than {lt}",
    "less_than_equal": "it should be at most {le}",
    "string_type": "it should be text",
    "string_unicode": "it should be text in UTF-8",
    "string_too_short": "it should have at least {min_length}",
    "string_too_long": "it should have at most {max_length}",
    "string_pattern_mismatch": "it should fit the pattern {pattern}",
    "literal_error": "it should be {expected}",
    "list_type": "it should be a list",
    "tuple_type": "it should be a list",
    "frozen_set_type": "it should be a list",
    "too_short": "it should have at least {min_length}",
    "too_long": "it should have at most {max_length}",
    "dict_type": "it should be an object",
    "model_type": "it should be an object",
    "model_attributes_type": "it should be an object",
    "dataclass_type": "it should be an object",
    "path_type": "it should be a path",
    "ip_any_network": "it should be an address or a network, like 10.1.2.3 or 10.0.0.0/8",
    "value_error": "{error}",
    "json_invalid": "it is not JSON: {error}",
}
"""Type of a mistake → half a sentence, with what pydantic knows of it filled in."""


def mistake(error: ErrorDetails) -> str:
    """What is wrong with a value, as half a sentence without a full stop."""
    words = WORDS.get(error["type"])
    if words is None:
        return error["msg"]  # of a type of ours, whose sentence is ours, too
    of = "character" if error["type"].startswith("string") else "item"
    known = {
        name: counted(value, of) if name in ("min_length", "max_length") else value
        for name, value in error.get("ctx", {}).items()
    }
    return words.format(**known)


def range_of(schema: type[BaseModel], name: str, kind: str = "number") -> str | None:
    """Return half a sentence with both bounds of a number of a schema, or None if it has no two
    bounds."""
    metadata = schema.model_fields[name].metadata
    low, high = (
        next(
            (
                value
                for constraint in metadata
                if (value := getattr(constraint, end, None)) is not None
            ),
            None,
        )
        for end in ("ge", "le")
    )
    if low is not None and high is not None:
        return f"it should be a {kind} from {low} to {high}"
    return None
