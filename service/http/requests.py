"""Reading of a request, which is JSON, a raw image or a form, into instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from anyio import to_thread
from pydantic import BaseModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from cam.counts import counted
from service.core.errors import (
    MalformedRequest,
    Problem,
    TooManyInstances,
    UnknownParameter,
    UnsupportedMediaType,
    step,
)
from service.core.json_text import validate_json
from service.core.pydantic_errors import mistake
from service.pipeline.images import decode_base64
from service.pipeline.instances import Instance, P, Remote
from service.pipeline.multipart import FormParser
from service.pipeline.parameters import MAX_INSTANCES, ImageParameters
from service.pipeline.validation import parameter_problem, read_parameters

MAX_MISTAKES = 1000
ACCEPTED = "application/json, multipart/form-data or image/*"


async def read_instances(
    request: Request, parameters: type[P], body: type[BaseModel], *, max_instances: int
) -> list[Instance[P]]:
    """Read a request's body, whatever its form.

    Query parameters apply to every instance; parameters in the body take precedence. An adapter
    that knows other forms of JSON leaves a function `rewrite` in the scope's state, which returns
    the body in this form.

    Args:
        body: schema of a body of JSON, with `instances` and `parameters`.

    Raises:
        Problem: if the request as a whole cannot be read.
    """
    base = read_parameters(parameters, request.query_params, "/query")
    origins = _origins("/query", _set(base))
    header = request.headers.get("content-type", "")
    media, options = parse_options_header(header)
    media_type = media.decode("latin-1").strip().lower()
    charset = options.get(b"charset", b"utf-8").decode("latin-1").lower()
    if media_type == "application/json" and charset in ("utf-8", "utf8"):
        rewrite = request.scope["state"].get("rewrite", bytes)
        read = await to_thread.run_sync(
            _from_json, await request.body(), rewrite, body, base, origins, max_instances
        )
    elif media_type == "multipart/form-data" and charset in ("utf-8", "utf8"):
        boundary = options.get(b"boundary")
        read = await to_thread.run_sync(
            _from_form, await request.body(), boundary, base, origins, max_instances
        )
    elif media_type.startswith("image/"):
        read = [Instance(0, None, await request.body(), "", base, origins)]
    else:
        said = f"Content-Type is {header[:120]!r}" if header else "there is no Content-Type"
        raise UnsupportedMediaType(f"{said}; send {ACCEPTED} (text in UTF-8)")
    _limit(len(read), max_instances)
    if not read[0].image and read[0].pointer == "":
        raise MalformedRequest("the body is empty; send the bytes of an image")
    return read


def _limit(count: int, max_instances: int) -> None:
    if count > max_instances:
        raise TooManyInstances(
            f"the request has {count} instances; at most {counted(max_instances, 'is', 'are')} "
            "allowed"
        )


def _from_json(
    body: bytes,
    rewrite: Callable[[bytes], bytes],
    schema: type[Any],
    base: P,
    origins: Mapping[str, str],
    max_instances: int,
) -> list[Instance[P]]:
    if not body.strip():
        raise MalformedRequest('the body is empty; send {"instances": [{"image": {"b64": …}}]}')
    try:
        sent = validate_json(schema, rewrite(body), strict=True)
    except ValidationError as error:
        raise _body_problem(error, type(base)) from None
    _limit(len(sent.instances), max_instances)
    common = base.model_copy(update=_set(sent.parameters))
    origins = {**origins, **_origins("/parameters", _set(sent.parameters))}
    instances = []
    for index, instance in enumerate(sent.instances):
        pointer = f"/instances/{index}/image/b64"
        own = _set(instance, base.own)
        image: bytes | Problem | Remote
        if instance.image.url is not None:
            pointer = f"/instances/{index}/image/url"
            image = Remote(instance.image.url)
        else:
            image = _decode_base64(instance.image.b64 or "", pointer)
        asked = common.model_copy(update=own)
        where = {**origins, **_origins(f"/instances/{index}", own)}
        instances.append(Instance(index, instance.id, image, pointer, asked, where))
    return instances


class _Files:
    """The files of a form, whole: the body is in memory anyway.

    Args:
        most: maximum number of files.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.found: list[tuple[str | None, bytes]] = []
        self._pieces: list[bytes] = []

    def begin(self) -> None:
        if len(self.found) == self._most:  # those that follow are not counted
            most = counted(self._most, "instance")
            raise TooManyInstances(f"the request has more than the {most} allowed")
        self._pieces = []

    def piece(self, data: bytes) -> None:
        self._pieces.append(data)

    def end(self, name: str | None) -> None:
        self.found.append((name, b"".join(self._pieces)))


def _from_form(
    body: bytes,
    boundary: bytes | None,
    base: P,
    origins: Mapping[str, str],
    max_instances: int,
) -> list[Instance[P]]:
    files = _Files(max_instances)
    form = FormParser(files, boundary)
    form.feed(body)
    form.end()
    given = read_parameters(type(base), ImmutableMultiDict(form.fields), "/form")
    common = base.model_copy(update=_set(given))
    origins = {**origins, **_origins("/form", _set(given))}
    if not files.found:
        raise MalformedRequest(
            "the form has no complete part named 'image'; send at least one image file"
        )
    return [
        Instance(index, name, data, f"/form/image/{index}", common, origins)
        for index, (name, data) in enumerate(files.found)
    ]


def _decode_base64(text: str, pointer: str) -> bytes | Problem:
    try:
        return decode_base64(text)
    except ValueError as error:
        return MalformedRequest(f"the image is not valid base64: {error}", pointer=pointer)


def _origins(where: str, names: Iterable[str]) -> dict[str, str]:
    return {name: f"{where}/{name}" for name in names}


def _set(model: BaseModel, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the fields, among `names` if given, that the caller set to something but None."""
    return {
        name: value
        for name in model.model_fields_set
        if (names is None or name in names) and (value := getattr(model, name)) is not None
    }


def _body_problem(error: ValidationError, parameters: type[ImageParameters]) -> Problem:
    if error.error_count() > MAX_MISTAKES:  # listing all would take longer than reading the body
        return MalformedRequest(f"the body has {error.error_count()} mistakes; send fewer fields")
    # An unknown field often explains a missing one.
    unknown = [detail for detail in error.errors() if detail["type"] == "extra_forbidden"]
    first = (unknown or error.errors())[0]
    where = [str(part) for part in first["loc"]]
    own = parameters.own
    if first["type"] == "too_long" and where == ["instances"]:
        return TooManyInstances(f"the request has more than {MAX_INSTANCES} instances")
    if where[:1] == ["parameters"] and len(where) > 1:
        return parameter_problem(error, parameters, "/parameters", depth=1)
    if where[:1] == ["instances"] and len(where) > 2 and where[2] in own:
        return parameter_problem(error, parameters, f"/instances/{where[1]}", depth=2)
    pointer = "/" + "/".join(step(part) for part in where[:4]) if where else ""
    if first["type"] == "extra_forbidden":
        fields = {1: ["instances", "parameters"], 3: ["image", "id", *own], 4: ["b64", "url"]}
        known = ", ".join(fields.get(len(where), fields[1]))
        return UnknownParameter(
            f"there is no field {where[-1][:80]!r} at {pointer}; the fields are {known}",
            pointer=pointer,
        )
    said = mistake(first)
    if where[2:] == ["image"]:
        said += ', {"b64": …} or {"url": …}'
    return MalformedRequest(f"at {pointer or '/'}: {said}", pointer=pointer)
