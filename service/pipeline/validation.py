"""Reading of parameters from text, and the problem that names the parameter that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.datastructures import ImmutableMultiDict

from cam.errors import did_you_mean
from service.core.errors import InvalidParameter, Problem, UnknownMethod, UnknownParameter, step
from service.core.pydantic_errors import mistake, range_of
from service.pipeline.instances import P
from service.pipeline.parameters import ImageParameters
from service.pipeline.targets import TargetObject

BOUNDS = ("greater_than_equal", "less_than_equal")


def read_parameters(schema: type[P], sent: ImmutableMultiDict[str, Any], where: str) -> P:
    """Read parameters from the texts of a query or a form.

    Raises:
        Problem: if a parameter is wrong; it names the parameter.
    """
    given: dict[str, list[Any]] = {}
    for name, value in sent.multi_items():
        given.setdefault(name, []).append(value)
    if len(given) > len(schema.model_fields):  # pydantic would describe each of thousands
        name = next(name for name in given if name not in schema.model_fields)
        raise _unknown(name, schema, where)
    if "method" in given:
        # A bare plus in a query means a space, but ?method=gradcam++ should work.
        given["method"] = [
            value.replace(" ", "+") if isinstance(value, str) else value
            for value in given["method"]
        ]
    values = {name: several if len(several) > 1 else several[0] for name, several in given.items()}
    return validated(schema, values, where)


def validated(schema: type[P], values: Mapping[str, Any], where: str = "") -> P:
    """Return parameters that are given by their names.

    Args:
        where: pointer to the parameters in the request.

    Raises:
        Problem: if a parameter is wrong; it names the parameter.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise parameter_problem(error, schema, where) from None


def parameter_problem(
    error: ValidationError,
    schema: type[ImageParameters],
    where: str = "",
    *,
    depth: int = 0,
) -> Problem:
    """Return the problem of the first parameter that pydantic refused.

    Args:
        where: pointer to the parameters in the request.
        depth: number of steps of pydantic's location above the parameter's name.
    """
    way = error.errors()[0]["loc"][: depth + 1]
    name = str(way[-1])
    errors = [detail for detail in error.errors() if detail["loc"][: depth + 1] == way]
    pointer = f"{where}/{step(name)}"
    if errors[0]["type"] == "extra_forbidden":
        return _unknown(name, schema, where)
    if errors[0]["type"] == "unknown_method":
        return UnknownMethod(errors[0]["msg"], pointer=pointer)
    if errors[0]["type"] == "unknown_metric":
        return InvalidParameter(errors[0]["msg"], pointer=pointer)
    inner = [error for error in errors if any(map(_is_target, error["loc"][:-1]))]
    inner += [error for error in errors if error["type"] == "target"]
    if inner:
        return _target_problem(inner[0], pointer)
    sent = errors[0]["input"]
    repeated = errors[0]["loc"] == way and errors[0]["type"] not in ("too_short", "too_long")
    if isinstance(sent, list) and where in ("/query", "/form") and repeated:
        return InvalidParameter(f"{name} is given {len(sent)} times; give it once", pointer=pointer)
    allowed = range_of(schema, name) if errors[0]["type"] in BOUNDS else None
    allowed = allowed or " or ".join(dict.fromkeys(mistake(error) for error in errors))
    value = str(sent)[:80]
    return InvalidParameter(f"{name} is {value!r}: {allowed}", pointer=pointer)


def _unknown(name: str, schema: type[ImageParameters], where: str) -> Problem:
    known = list(schema.model_fields)
    return UnknownParameter(
        f"there is no parameter {name[:80]!r}; the parameters are {', '.join(known)}"
        f"{did_you_mean(name, known)}",
        pointer=f"{where}/{step(name)}",
    )


def _target_problem(error: ErrorDetails, pointer: str) -> Problem:
    """Return the problem of a target that is wrong, or that has a wrong key in its object."""
    if error["type"] == "target":
        sent = str(error["input"])[:80]
        return InvalidParameter(f"target is {sent!r}: {error['msg']}", pointer=pointer)
    loc = error["loc"]
    where = next(turn for turn, key in enumerate(loc) if _is_target(key))
    key, value = str(loc[where + 1])[:80], str(error["input"])[:80]
    if error["type"] == "extra_forbidden":
        keys = ", ".join(field_.rstrip("_") for field_ in TargetObject.model_fields)
        said = f"a target has no key {key!r}; its keys are {keys}"
    else:
        said = f"{key} of a target is {value!r}: {mistake(error)}"
    return InvalidParameter(said, pointer=pointer)


def _is_target(where: int | str) -> bool:
    """Return whether a step of the location of pydantic's error is a target's object."""
    return "TargetObject" in str(where) and not str(where).startswith("list[")
