"""One image of a batch: from where it lies to the rows of its maps, pictures written on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from service import __version__
from service.batch.configuration import FORMATS, RunConfiguration
from service.core.errors import ConfigError, InsufficientStorage, Problem, Unavailable
from service.engine.timings import Timings
from service.models.registry import ServedModel
from service.pipeline.descriptions import describe_input
from service.pipeline.explainer import Explained, Explainer
from service.pipeline.instances import Instance
from service.pipeline.parameters import Parameters
from service.pipeline.rendering import EXTENSIONS, encode
from service.pipeline.resolve import questions_of
from service.pipeline.rows import Row, picture_path, row_of
from service.pipeline.session import LocalSession
from service.pipeline.work_item import WorkItem

LISTED: Final = 20
"""Targets that are told one by one."""
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


def check(
    session: LocalSession, configuration: RunConfiguration, targets: Collection[str | None]
) -> None:
    """See, before the first image is explained, that the model can do what they are asked for.

    Args:
        targets: of each image its own, or None where the order's is asked.

    Raises:
        Problem: naming what the model cannot.
        ConfigError: naming the targets of single images that it cannot explain, and why.
    """
    model = session.replicas.model
    parameters = configuration.parameters()
    if None not in targets:
        parameters = parameters.model_copy(update={"target": None})
    questions_of(model, parameters)
    wrong = []
    counts = Counter(target for target in targets if target is not None)
    for target, images in counts.items():
        try:
            questions_of(model, configuration.parameters(target))
        except Problem as problem:
            wrong.append(
                f"{target[:80]!r} ({images} image{'s' if images > 1 else ''}): {problem.detail}"
            )
    if wrong:
        more = [f"and {len(wrong) - LISTED} more"] if len(wrong) > LISTED else []
        raise ConfigError(
            f"{len(wrong)} of {len(counts)} different targets in the table cannot be explained: "
            + "; ".join(wrong[:LISTED] + more)
        )


def made_with(model: ServedModel) -> dict[str, Any]:
    """What numbers depend on beside the weights and the parameters."""
    return {
        "gradcam-service": __version__,
        "torch": version("torch"),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "layout": "channels-last" if model.channels_last else "contiguous",
        "input": describe_input(model.preprocessing).model_dump(mode="json"),
    }


def raise_last(session: LocalSession, result: object) -> None:
    """
    Raises:
        InsufficientStorage, Unavailable: if the result is a problem that each further image would
            have: no room, or a model that is dead.
    """
    if isinstance(result, InsufficientStorage):
        raise result
    if isinstance(result, Unavailable) and not session.replicas.alive:
        raise result


async def explain_item(
    session: LocalSession, configuration: RunConfiguration, item: Item
) -> list[Row]:
    """The rows of an image's maps.

    Raises:
        Problem: if it has none.
    """
    parameters = configuration.parameters(item.target)
    image = await asyncio.to_thread(item.read, item.id)
    instance = Instance(0, item.id, image, "", parameters)
    for _ in range(TRIES - 1):
        with suppress(Unavailable):
            return await _explained(session, configuration, instance, item.target)
        await session.revival()
    return await _explained(session, configuration, instance, item.target)


async def _explained(
    session: LocalSession,
    configuration: RunConfiguration,
    instance: Instance[Parameters],
    asked: str | None,
) -> list[Row]:
    async with session.explainer.work_item(session.replicas, instance, Timings()) as work_item:
        explained = await session.explainer.explain(work_item)
        return await work_item.lane.run(
            lambda: _recorded(work_item, explained, configuration, asked)
        )


def _recorded(
    work_item: WorkItem[Parameters],
    explained: Explained,
    configuration: RunConfiguration,
    asked: str | None,
) -> list[Row]:
    model, parameters = work_item.replicas.model, work_item.instance.parameters
    name = work_item.instance.id or ""
    rows = []
    for number, explanation in enumerate(explained.answer.explanations):
        drawing = Explainer.draw(explained, explanation, parameters)
        path = None
        if media_type := FORMATS[configuration.form]:
            picture = Explainer.picture(model, explained, explanation, drawing, parameters)
            path = picture_path(name, number, EXTENSIONS[media_type])
            _write(configuration.output / path, encode(picture, media_type))
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
