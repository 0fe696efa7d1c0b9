"""Descriptions of an operation's requests, answers and errors for openapi/openapi.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, Field, create_model
from pydantic.json_schema import models_json_schema

from service.core.errors import PROBLEM_JSON, Problem
from service.core.schemas import ProblemDocument
from service.pipeline.images import FORMATS

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
PHOTOS: Final = dict.fromkeys(f"image/{kind.lower()}" for kind in FORMATS)
"""Media types of photos. The app reads any `image/*`; the contract lists types, because a client
cannot send an asterisk."""
FILE: Final = {"schema": {"type": "string", "format": "binary"}}
TEXT: Final = {"schema": {"type": "string"}}
HEADERS: Final = {
    "Cache-Control": ("Who may keep the answer.", "string"),
    "ETag": ("An answer with the same tag is the same.", "string"),
    "Location": ("The address of what was made.", "string"),
    "Retry-After": ("Seconds.", "integer"),
    "Server-Timing": ("Milliseconds per phase.", "string"),
    "X-Next-Cursor": ("Where to go on.", "integer"),
}
UNCHANGED: Final[dict[int | str, dict[str, Any]]] = {
    304: {"description": "The caller's `If-None-Match` names this very answer."}
}
PROBLEMS: Final = {
    subclass.status: subclass for subclass in Problem.__subclasses__() if subclass.example
}
"""Status → the problem class that represents all problems of that status: of several that have an
example, the one that `service/core/errors.py` defines last."""
SERVING: Final = (400, 401, 403, 404, 406, 408, 413, 415, 422, 424, 429, 431, 500, 503, 504)


def answers(
    model: type[BaseModel] | None = None,
    forms: Mapping[str, str | None] | None = None,
    *,
    example: Any = None,
    status: int = 200,
    headers: Sequence[str] = (),
    problems: Sequence[int] = (),
) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of an operation.

    Args:
        model: schema of the JSON answer.
        forms: other media types, each with an example if it is text, or None if it is a file.
        example: example of the JSON answer, in place of its fields' own examples.
        status: status of the successful answer.
        headers: names of that answer's headers.
        problems: statuses of the errors.
    """
    content = {} if model is None else {JSON: {"example": example or worked_example(model)}}
    for media_type, text in (forms or {}).items():
        # A schema of an event stream is that of one event, whose form OpenAPI 3.1 cannot tell.
        schema = {} if media_type == EVENTS else TEXT
        content[media_type] = FILE if text is None else {**schema, "example": text}
    success = {"content": content, "headers": _headers(*headers)}
    refusals: dict[int | str, Any] = {
        status: _refusal(PROBLEMS[status]) for status in sorted(problems)
    }
    return {status: {key: content for key, content in success.items() if content}, **refusals}


def takes(
    query: type[BaseModel] | None = None,
    body: type[BaseModel] | None = None,
    *,
    example: Any = None,
    form: type[BaseModel] | None = None,
    files: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Return the `openapi_extra` of an operation that reads its request itself.

    Args:
        query: schema whose fields are the query parameters, or headers if the field says so.
        body: schema of the JSON body.
        example: example of the JSON body.
        form: schema of the fields that a form has beside its images.
        files: other media types, each with an example or None.
    """
    extra = {"parameters": _parameters(query)} if query else {}
    if body is None:
        return extra
    content = {JSON: {"schema": _schema(body), "example": example}}
    if form:
        content["multipart/form-data"] = {"schema": _schema(_form_of(body, form))}
    for media_type, shown in (files or {}).items():
        content[media_type] = FILE | ({"example": shown} if shown else {})
    return {**extra, "requestBody": {"required": True, "content": content}}


def gather_components(document: dict[str, Any]) -> None:
    """Move the definitions that `_schema` added to the document's components.

    FastAPI does so only for bodies that it reads itself; these bodies are read as they stream in.
    """
    schemas = document["components"]["schemas"]

    def gather(node: Any) -> None:
        if isinstance(node, dict):
            for name, schema in node.pop("$defs", {}).items():
                assert schemas.setdefault(name, schema) == schema, f"there are two schemas {name}"
        for child in node.values() if isinstance(node, dict) else node:
            if isinstance(child, dict | list):
                gather(child)

    gather(document["paths"])
    document["components"]["schemas"] = dict(sorted(schemas.items()))


@cache
def worked_example(model: type[BaseModel]) -> Any:
    """Return an example of an answer, made of its required fields and of the other fields that have
    an example."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def example(node: dict[str, Any]) -> Any:
        if "examples" in node or "const" in node:
            return node["examples"][0] if "examples" in node else node["const"]
        if "$ref" in node:
            return example(definitions[node["$ref"].rpartition("/")[2]])
        if "anyOf" in node:
            return example(node["anyOf"][0])
        if "items" in node:
            return [example(node["items"])]
        fields, required = node["properties"], node.get("required", ())
        told = (name for name in fields if name in required or "examples" in fields[name])
        return {name: example(fields[name]) for name in told}

    return example(schema)


# What is described is kept: schemas are most of what it takes to make an app. FastAPI copies them
# into its document.
@cache
def _form_of(body: type[BaseModel], form: type[BaseModel]) -> type[BaseModel]:
    """Return the schema of a form: its fields, and the images."""
    name = body.__name__.replace("Request", "Form")
    return create_model(name, __base__=form, image=(list[bytes], Field(min_length=1)))


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return a reference to the model's schema, with all schemas that it needs in `$defs`."""
    named, definitions = models_json_schema(
        [(model, "validation")], ref_template="#/components/schemas/{model}"
    )
    return {**named[model, "validation"], **definitions}


@cache
def _parameters(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the model's fields as parameters. The first one holds the definitions of all."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return [
        {
            "name": name,
            "in": field.pop("in", "query"),
            "required": False,
            "description": field.pop("description"),
            "schema": {**_never_null(field), "$defs": schema.pop("$defs", {})},
        }
        for name, field in schema["properties"].items()
    ]


def _never_null(field: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema without `null`: who sends a query leaves a parameter out instead."""
    schema = {key: value for key, value in field.items() if key != "title"}
    kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
    return {**schema, **(kinds[0] if len(kinds) == 1 else {"anyOf": kinds} if kinds else {})}


def _refusal(problem: type[Problem]) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{ProblemDocument.__name__}"}
    content = {PROBLEM_JSON: {"schema": schema, "example": problem(problem.example).body()}}
    refusal = {"description": problem.title, "content": content}
    return refusal | ({"headers": _headers("Retry-After")} if problem.status in (429, 503) else {})


def _headers(*names: str) -> dict[str, Any]:
    return {
        name: {"description": HEADERS[name][0], "schema": {"type": HEADERS[name][1]}}
        for name in names
    }
