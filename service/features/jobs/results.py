"""The finished results of jobs: reading them from the database and from their files."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any, Final, Literal

import numpy as np
from PIL import Image
from pydantic import BaseModel
from sqlalchemy import Row, select

from cam.drawing.placement import Box
from service.core.errors import InternalError, NotAcceptable
from service.core.schemas import (
    Explanation,
    MapFacts,
    Prediction,
    ProblemDocument,
    ScoredClass,
    dump,
)
from service.features.jobs.database import Database
from service.features.jobs.database_tables import items, results
from service.features.jobs.errors import ItemFailed, UnknownJob
from service.features.jobs.job_files import Folder
from service.features.jobs.records import Finished, Job
from service.features.jobs.schemas import ItemAnswer, ItemFacts, ItemResult
from service.pipeline.record import NUMBERS, MapRecord
from service.pipeline.rendering import encode

PAGE: Final = 100
"""Number of finished items that are read in one transaction."""


class ResultStore:
    """Reads results from the database. Each method is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def results(self, job: Job, after: int, most: int) -> list[Finished]:
        """Return up to `most` items that finished after the cursor `after`, in the order in which
        they finished."""
        new = (results.c.job == job.id) & (results.c.cursor > after)
        return self._some(_results().where(new).order_by(results.c.cursor).limit(most))

    def in_order(self, job: Job, after: int, most: int) -> list[Finished]:
        """Return up to `most` finished items with numbers above `after`, in the order of the items.
        Only items that were finished when `job` was read are returned."""
        here = (results.c.job == job.id) & (results.c.cursor <= job.settled)
        behind = here & (results.c.number > after)
        return self._some(_results().where(behind).order_by(results.c.number).limit(most))

    def _some(self, query: Any) -> list[Finished]:
        with self._database.read() as connection:
            return [_finished(row) for row in connection.execute(query)]

    def result(self, job: Job, item: str) -> Finished | bool:
        """Return one item if it has finished; otherwise whether there is such an item."""
        with self._database.read() as connection:
            here = (items.c.job == job.id) & (items.c.id == item)
            row = connection.execute(_results().where(here)).one_or_none()
            if row is not None:
                return _finished(row)
            return connection.execute(select(items.c.number).where(here)).first() is not None

    def speed(self, job: Job, of: int = 100) -> float | None:
        """Return the images per second: of the latest `of` images while the job runs, of all images
        after it has ended. Return None if it is unknown."""
        if job.settled == 0 or job.started is None:
            return None
        if job.finished is not None:
            return job.settled / max(job.finished - job.started, 1e-3)
        if job.settled <= of:
            return job.settled / max(time.time() - job.started, 1e-3)
        with self._database.read() as connection:
            before = results.c.cursor == job.settled - of
            since = connection.execute(
                select(results.c.at).where(results.c.job == job.id, before)
            ).scalar()
        return None if since is None else of / max(time.time() - since, 1e-3)


def _results() -> Any:
    joined = results.join(
        items, (items.c.job == results.c.job) & (items.c.number == results.c.number)
    )
    return select(results.c.cursor, results.c.number, results.c.problem, items.c.id).select_from(
        joined
    )


def _finished(row: Row[Any]) -> Finished:
    problem = json.loads(row.problem) if row.problem else None
    return Finished(row.cursor, row.number, row.id, problem)


def all_finished(result_store: ResultStore, job: Job) -> Iterator[Finished]:
    """Yield the items that were finished when `job` was read, in the order of the items.

    Raises:
        UnknownJob: at the end, if the job was removed meanwhile and items are missing.
    """
    after, told = -1, 0
    while page := result_store.in_order(job, after, PAGE):
        yield from page
        after, told = page[-1].number, told + len(page)
    if told < job.settled:
        raise UnknownJob(f"job {job.id} was removed while its results were read")


class StoredMaps(BaseModel):
    """The second line of a result's file, behind the result as it is served: the records of its
    maps, and the prediction. Results of before version 2 have one line, and those of version 2 at
    first had no prediction there."""

    version: Literal[2] = 2
    prediction: Prediction | None = None
    maps: list[MapRecord]


def stored(answer: ItemAnswer, maps: list[MapRecord]) -> bytes:
    """Return what the file of an item's result holds."""
    return dump(answer) + b"\n" + dump(StoredMaps(prediction=answer.prediction, maps=maps))


def line_of(folder: Folder, job: Job, finished: Finished, *, maps: bool = True) -> bytes:
    """Return the result of an item as one line of JSON, without the line break.

    Args:
        maps: whether the line has the maps and their pictures; otherwise they are not even read.
    """
    if finished.problem is not None:
        return dump(
            ItemResult(
                cursor=finished.cursor,
                index=finished.number,
                item=finished.id,
                error=finished.problem["detail"],
                problem=ProblemDocument.model_validate(finished.problem),
            )
        )
    if not maps:
        return dump(_facts(folder, job, finished))
    return _line(folder, job, finished)


def maps_of(folder: Folder, job: Job, finished: Finished) -> list[MapRecord]:
    """Return the records of the maps of an item that is explained."""
    if kept := _stored(folder, job, finished):
        return kept.maps
    answer = ItemAnswer.model_validate_json(_line(folder, job, finished))
    classes = answer.prediction and answer.prediction.classes
    predicted = classes[0] if classes else None
    return [
        _of_older(explanation, number, predicted)
        for number, explanation in enumerate(answer.explanations or ())
    ]


def _facts(folder: Folder, job: Job, finished: Finished) -> ItemFacts:
    """Return what is known of the maps of an item that is explained."""
    kept = _stored(folder, job, finished)
    if kept is None or kept.prediction is None:  # of an older version
        return ItemFacts.model_validate_json(_line(folder, job, finished))
    return ItemFacts(
        cursor=finished.cursor,
        index=finished.number,
        item=finished.id,
        prediction=kept.prediction,
        explanations=[record.facts for record in kept.maps],
    )


def _stored(folder: Folder, job: Job, finished: Finished) -> StoredMaps | None:
    """Return the records of an item's maps, or None if the result is of before version 2."""
    line = _read(folder.read_last_line, job, finished)
    return StoredMaps.model_validate_json(line) if line else None


def _line(folder: Folder, job: Job, finished: Finished) -> bytes:
    """Return the answer of an item that is explained as a line of results."""
    document, _, _ = _read(folder.read_result, job, finished).partition(b"\n")
    return b'{"cursor":%d,' % finished.cursor + document[1:]


def _read(read: Callable[[str, int], bytes], job: Job, finished: Finished) -> bytes:
    try:
        return read(job.id, finished.number)
    except FileNotFoundError:
        raise InternalError(
            f"the result of item {finished.id[:200]!r} is gone from the disk"
        ) from None


def _of_older(explanation: Explanation, number: int, predicted: ScoredClass | None) -> MapRecord:
    """Return the record of a map if only its answer is stored. The record has the pixels of the
    picture, and 8 bits unless numbers were asked for."""
    heatmap, region = explanation.heatmap, explanation.region
    height, width = heatmap.shape
    data = base64.b64decode(heatmap.data)
    if heatmap.encoding == "float32":
        values = np.frombuffer(data, NUMBERS).reshape(height, width)
    else:
        with Image.open(BytesIO(data)) as drawn:  # the service drew it, in gray
            gray = np.asarray(drawn, np.float32)
        zero, most = (128, 127) if explanation.signed else (0, 255)
        values = (gray - np.float32(zero)) / np.float32(most)
    covers = explanation.covers or Box(left=0, top=0, right=width, bottom=height)
    if (region.width, region.height) != (width, height):  # the model saw a part of the photo
        right, bottom = region.left + region.width, region.top + region.height
        values = values[region.top : bottom, region.left : right]
        covers = Box(left=region.left, top=region.top, right=right, bottom=bottom)
    return MapRecord(
        number=number,
        facts=MapFacts(**{name: getattr(explanation, name) for name in MapFacts.model_fields}),
        predicted=predicted,
        numbers=values.astype(NUMBERS).tobytes(),
        shape=(values.shape[0], values.shape[1]),
        covers=covers,
        picture_shape=(height, width),
    )


def picture_of_line(line: bytes, form: str, width: int | None = None) -> bytes:
    """Return the only map of a result as a picture.

    Args:
        line: the result as one line of JSON.
        form: media type of the picture.
        width: its largest width in pixels; None for the width that it was drawn with.

    Raises:
        NotAcceptable: if the result does not have exactly one map, or the job asked for numbers.
        ItemFailed: if the item failed.
    """
    document = json.loads(line)
    if "error" in document:
        raise ItemFailed(f"item {document['item'][:200]!r} failed: {document['error']}")
    if "explanations" not in document:
        raise NotAcceptable(f"{form} is a picture, and the item has none; ask for JSON")
    explanations = document["explanations"]
    if len(explanations) != 1:
        raise NotAcceptable(
            f"{form} holds exactly one map, and the item has {len(explanations)}; ask for "
            "application/json"
        )
    picture = picture_of_explanation(explanations[0])
    if picture is None:
        raise NotAcceptable("the job asked for numbers, which are not a picture; ask for JSON")
    if form == "image/png" and width is None:
        return picture
    with Image.open(BytesIO(picture)) as drawn:  # the service drew it, in RGB or gray
        if width is not None:
            drawn.thumbnail((width, drawn.height))
        return encode(np.asarray(drawn), form)


def picture_of_explanation(explanation: dict[str, object]) -> bytes | None:
    """Return the overlay as PNG, or the grayscale map if there is no overlay; None if the map is
    given as numbers."""
    overlay, heatmap = explanation.get("overlay"), explanation["heatmap"]
    assert isinstance(heatmap, dict)
    if isinstance(overlay, dict):
        return base64.b64decode(overlay["data"])
    return base64.b64decode(heatmap["data"]) if heatmap["encoding"] == "png" else None
