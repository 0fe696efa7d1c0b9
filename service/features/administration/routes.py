"""Routes that add and remove models, for keys of scope `admin`."""

from __future__ import annotations

import asyncio
import fnmatch
from contextlib import suppress
from typing import Final

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from service.core import model_schemas
from service.core.errors import (
    BodyTooLarge,
    Forbidden,
    InvalidParameter,
    MalformedRequest,
    ModelFailed,
    Problem,
    Unavailable,
    UnknownParameter,
    UnsupportedMediaType,
    step,
)
from service.core.json_text import read_json
from service.core.pydantic_errors import mistake
from service.core.schemas import dump
from service.features.administration.new_model import NewModel
from service.features.administration.settings import AdministrationSettings
from service.http.access import needs
from service.http.adapter import Added, AppParts
from service.http.contract import answers, takes
from service.models.catalog import ModelEntry
from service.models.sources import told_of

MAX_BYTES = 10_000
LOOK_SECONDS: Final = 0.1
WORDS = {
    "name": "it should begin with a letter or a digit and have letters, digits, '.', '_' and '-'",
    "source": f"it can be {told_of(graphs=False)}".replace("`", ""),
}
"""Key that has a pattern → a description of what the pattern allows."""


def administration(parts: AppParts) -> Added:
    """Add the routes that add and remove models."""
    router, routes = APIRouter(tags=["models"]), AdministrationRoutes(parts)
    router.post(
        "/v1/models",
        summary="Load one more model",
        description=(
            "For keys of scope `admin`. The model loads in the background: `GET` of its "
            "`Location` answers 503 while it loads, and 424 if it could not be loaded. The "
            "request cannot name files: the weights are the source's own, or seeded random."
        ),
        status_code=202,
        response_model=model_schemas.ModelState,
        response_description="It is loading.",
        responses=answers(
            model_schemas.ModelState,
            status=202,
            headers=["Location", "Retry-After"],
            problems=[400, 401, 403, 408, 409, 413, 415, 422, 429, 431],
        ),
        openapi_extra=takes(
            body=NewModel, example={"name": "r50", "source": "torchvision:resnet50"}
        ),
    )(routes.add_model)
    router.delete(
        "/v1/models/{model:model}",
        summary="Remove a model after its last request",
        description="For keys of scope `admin`. Answers when the last request is done.",
        status_code=204,
        response_description="It is gone.",
        responses=answers(status=204, problems=[401, 403, 404, 409, 429]),
    )(routes.remove_model)
    return Added([router])


class AdministrationRoutes:
    """The routes that change the models.

    FastAPI shows the docstrings of such methods to callers, so they have none: the table above says
    what each answers.
    """

    def __init__(self, parts: AppParts) -> None:
        settings = parts.settings_of(AdministrationSettings)
        self._manager = parts.manager
        self._admission = parts.admission
        # A configured model that was removed may be added again.
        self._allowed = [*settings.allowed_sources, *(entry.source for entry in parts.entries)]
        self._max_models = settings.max_models
        self._loading: set[asyncio.Task[None]] = set()

    @needs("admin")
    async def add_model(self, request: Request) -> Response:
        entry = await _entry(request)
        self.require_allowed(entry)
        await self._manager.add(entry, most=self._max_models)
        answer = model_schemas.ModelState(name=entry.name, state="loading")
        headers = {"Location": f"/v1/models/{entry.name}", "Retry-After": "1"}
        return Response(dump(answer), 202, headers, media_type="application/json")

    def require_allowed(self, entry: ModelEntry) -> None:
        """Check that callers may load models from the source of an entry.

        Raises:
            Forbidden: if they may not.
        """
        if not any(fnmatch.fnmatchcase(entry.source, pattern) for pattern in self._allowed):
            allowed = ", ".join(dict.fromkeys(self._allowed))
            told = f"allowed are {allowed}: see GRADCAM_ALLOWED_SOURCES"
            raise Forbidden(f"source {entry.source!r} is not allowed; {told}")

    async def load(self, entry: ModelEntry) -> None:
        """Load one more model, and return when it is loaded. Of one that cannot be loaded nothing
        is left, even if the caller does not wait: its name and its place among the models are free.
        It takes the place of a model of that name that could not be loaded.

        Raises:
            ModelFailed: if it cannot be loaded.
            Conflict: if a model of that name exists, or the number of models is at its maximum.
            UnknownModel: if it was removed while it was loading.
        """
        if self.has_failed(entry.name):
            with suppress(Problem):  # another caller may have removed it
                await self._manager.remove(entry.name)
        await self._manager.add(entry, most=self._max_models)
        task = asyncio.create_task(self._until_loaded(entry.name), name="load a model")
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def has_failed(self, name: str) -> bool:
        """Return whether there is a model of this name that could not be loaded."""
        try:
            self._manager.replicas(name)
        except ModelFailed:
            return True
        except Problem:
            return False
        return False

    async def _until_loaded(self, name: str) -> None:
        while True:
            try:
                self._manager.replicas(name)
            except Unavailable:
                await asyncio.sleep(LOOK_SECONDS)
            except ModelFailed:
                with suppress(Problem):  # another caller may have removed it
                    await self._manager.remove(name)
                raise
            else:
                return

    @needs("admin")
    async def remove_model(self, model: str) -> Response:
        await self._manager.remove(model, lambda: self._admission.in_work(model))
        return Response(status_code=204)


async def _entry(request: Request) -> ModelEntry:
    """Read a model's entry from the body of a request.

    Raises:
        Problem: if the entry is wrong; it names the key and what is allowed.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType(f"Content-Type is {media_type[:80]!r}; send application/json")
    return read_entry(await request.body())


def read_entry(body: bytes, *, name: str | None = None) -> ModelEntry:
    """Read a model's entry from JSON.

    Args:
        name: the model's name, where the JSON need not have it.

    Raises:
        Problem: if the entry is wrong; it names the key and what is allowed.
    """
    if len(body) > MAX_BYTES:
        raise BodyTooLarge(f"the body has {len(body)} bytes; at most {MAX_BYTES} are allowed")
    try:
        sent = read_json(body)
        if name is not None and isinstance(sent, dict):
            sent["name"] = name
        new = NewModel.model_validate(sent)
        return ModelEntry.model_validate(new.model_dump(exclude_unset=True))
    except ValidationError as error:
        raise _problem(error) from None


def _problem(error: ValidationError) -> Problem:
    first = error.errors()[0]
    if not first["loc"]:
        return MalformedRequest('the body is not an object; send {"name": …, "source": …}')
    key = str(first["loc"][0])[:80]
    pointer = f"/{step(key)}"
    if first["type"] == "extra_forbidden":
        keys = ", ".join(NewModel.model_fields)
        return UnknownParameter(f"there is no key {key!r}; the keys are {keys}", pointer=pointer)
    if first["type"] == "missing":
        return InvalidParameter(f"{key} is required", pointer=pointer)
    if first["type"] == "string_pattern_mismatch":
        told = WORDS.get(key) or mistake(first)
        return InvalidParameter(f"{key} is {str(first['input'])[:80]!r}: {told}", pointer=pointer)
    # A key may have several forms: name what each of them requires.
    of_key = [detail for detail in error.errors() if detail["loc"][0] == first["loc"][0]]
    wanted = " or ".join(dict.fromkeys(map(mistake, of_key)))
    value = str(first["input"])[:80]
    return InvalidParameter(f"{key} is {value!r}: {wanted}"[:390], pointer=pointer)
