"""Explaining one image of a batch: reading it, writing its pictures, and making its rows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cam.counts import counted
from service import __version__
from service.core.errors import (
    MOST_TRIES,
    PASSING,
    PAUSE_SECONDS,
    ConfigError,
    InsufficientStorage,
    Problem,
    Unavailable,
)
from service.features.batch.configuration import FORMATS, RunConfiguration
from service.features.tables.rows import Row, picture_path, rows_of
from service.local.session import LocalSession
from service.pipeline.instances import Instance
from service.pipeline.json_records import describe_input
from service.pipeline.rendering import Drawing
from service.pipeline.resolve import questions_of

if TYPE_CHECKING:
    from service.loading.served_model import ServedModel

LISTED: Final = 20
"""Largest number of targets that an error message lists."""


@dataclass(frozen=True)
class UnreadImage:
    """One image that has not been read yet."""

    id: str
    read: Callable[[str], bytes]
    """Function that takes the id and returns the image's bytes; it blocks."""
    target: str | None = None
    """The image's own target, if it has one."""


def check(
    session: LocalSession, configuration: RunConfiguration, targets: Collection[str | None]
) -> None:
    """Check, before the first image is explained, that the model supports the configuration and all
    targets.

    Args:
        targets: the own target of each image; None for images that use the configuration's target.

    Raises:
        Problem: if the model does not support the configuration; the message names the reason.
        ConfigError: if the model cannot explain the targets of some images; the message names the
            targets and the reasons.
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
            wrong.append(f"{target[:80]!r} ({counted(images, 'image')}): {problem.detail}")
    if wrong:
        more = [f"and {len(wrong) - LISTED} more"] if len(wrong) > LISTED else []
        raise ConfigError(
            f"{len(wrong)} of {counted(len(counts), 'different target')} cannot be explained: "
            + "; ".join(wrong[:LISTED] + more)
        )


def made_with(model: ServedModel) -> dict[str, Any]:
    """Return the facts, beside weights and parameters, that the numbers of the maps depend on."""
    return {
        "gradcam-service": __version__,
        "torch": version("torch"),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "layout": "channels-last" if model.channels_last else "contiguous",
        "input": describe_input(model.preprocessing).model_dump(mode="json"),
    }


def raise_last(session: LocalSession, result: object) -> None:
    """Raise a result that is a problem which every further image would have, too.

    Raises:
        InsufficientStorage: if there is no room on the disk.
        Unavailable: if the model has no live worker.
    """
    if isinstance(result, InsufficientStorage):
        raise result
    if isinstance(result, Unavailable) and not session.replicas.alive:
        raise result


async def explain_item(
    session: LocalSession, configuration: RunConfiguration, item: UnreadImage
) -> list[Row]:
    """Explain an image, write its pictures and return the rows of its maps.

    Raises:
        Problem: if the image cannot be explained.
    """
    parameters = configuration.parameters(item.target)
    image = await asyncio.to_thread(item.read, item.id)
    instance = Instance(0, item.id, image, "", parameters)

    def save(drawing: Drawing) -> str | None:
        media_type = FORMATS[configuration.form]
        if media_type is None:
            return None
        path = picture_path(item.id, drawing.number, f".{configuration.form}")
        _write(configuration.output / path, drawing.encoded(media_type))
        return path

    for turn in range(MOST_TRIES):
        try:
            # At background priority the last bits of a map do not depend on the other images in
            # its batch, so two runs give the same bytes.
            async with session.pipeline.explain(
                session.replicas, instance, priority="background", used=True
            ) as result:
                rows = await rows_of(result, save)
            return [replace(row, asked=item.target) for row in rows]
        except PASSING:
            if turn == MOST_TRIES - 1:
                raise
            await asyncio.sleep(PAUSE_SECONDS)
            await session.revival()
    raise AssertionError("the last try returns or raises")


def _write(file: Path, picture: bytes) -> None:
    """Write a picture. The write need not be atomic, because no row refers to the picture before it
    is complete.

    Raises:
        InsufficientStorage: if the picture cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture)
    except OSError as error:
        raise InsufficientStorage(f"{file} cannot be written: {error.strerror}") from None
