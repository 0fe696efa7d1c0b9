"""One image of a batch: from where it lies to the rows of its maps, pictures written on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from service.batch.order import FORMATS, Order
from service.batch.rows import Row, picture_path, row_of
from service.case import Case
from service.errors import InsufficientStorage, Unavailable
from service.explainer import Explained, Explainer
from service.parameters import Parameters
from service.questions import question_of
from service.rendering import EXTENSIONS, encode
from service.requests import Instance
from service.timings import Timings
from service.workshop import Workshop

TRIES: Final = 3
"""Of an image whose worker is given up: another one of its batch may be to blame."""


@dataclass(frozen=True)
class Item:
    """One image that is still where it is."""

    id: str
    read: Callable[[str], bytes]
    """Its id to its bytes; blocks."""
    target: str | None = None
    """Its own."""


def check(workshop: Workshop, order: Order, *, target: bool) -> None:
    """See that the model can do what all images are asked for.

    Args:
        target: the order's own is asked of some, too; others have one each.

    Raises:
        Problem: naming what it cannot.
    """
    parameters = order.parameters()
    if not target:
        parameters = parameters.model_copy(update={"target": None})
    question_of(workshop.crew.model, parameters)


def raise_last(workshop: Workshop, result: object) -> None:
    """
    Raises:
        InsufficientStorage, Unavailable: if the result is a problem that each further image would
            have: no room, or a model that is dead.
    """
    if isinstance(result, InsufficientStorage):
        raise result
    if isinstance(result, Unavailable) and not workshop.crew.alive:
        raise result


async def explain_item(workshop: Workshop, order: Order, item: Item) -> list[Row]:
    """The rows of an image's maps.

    Raises:
        Problem: if it has none.
    """
    parameters = order.parameters(item.target)
    image = await asyncio.to_thread(item.read, item.id)
    instance = Instance(0, item.id, image, "", parameters)
    for _ in range(TRIES - 1):
        with suppress(Unavailable):
            return await _explained(workshop, order, instance, item.target)
        await workshop.revival()
    return await _explained(workshop, order, instance, item.target)


async def _explained(
    workshop: Workshop, order: Order, instance: Instance[Parameters], asked: str | None
) -> list[Row]:
    async with workshop.explainer.case(workshop.crew, instance, Timings()) as case:
        explained = await workshop.explainer.explain(case)
        return await case.lane.run(lambda: _recorded(case, explained, order, asked))


def _recorded(
    case: Case[Parameters], explained: Explained, order: Order, asked: str | None
) -> list[Row]:
    model, parameters = case.crew.model, case.instance.parameters
    name = case.instance.id or ""
    rows = []
    for number, explanation in enumerate(explained.answer.explanations):
        drawing = Explainer.draw(explained, explanation, parameters)
        path = None
        if media_type := FORMATS[order.form]:
            picture = Explainer.picture(model, explained, explanation, drawing, parameters)
            path = picture_path(name, number, EXTENSIONS[media_type])
            _write(order.output / path, encode(picture, media_type))
        row = row_of(name, number, explained, drawing, model, parameters, path)
        rows.append(replace(row, asked=asked))
    return rows


def _write(file: Path, picture: bytes) -> None:
    """No row tells of the picture before it is written, so it need not be whole at any moment.

    Raises:
        InsufficientStorage: if it cannot be.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture)
    except OSError as error:
        raise InsufficientStorage(f"{file} cannot be written: {error.strerror}") from None
