"""A finished item as a caller gets it."""

from __future__ import annotations

import base64
import json
from io import BytesIO

import numpy as np
from PIL import Image

from service.core.errors import InternalError, NotAcceptable
from service.core.schemas import ProblemDocument, dump
from service.jobs.documents import ItemResult
from service.jobs.errors import ItemFailed
from service.jobs.folder import Folder
from service.jobs.records import Finished, Job
from service.pipeline.rendering import encode


def line_of(folder: Folder, job: Job, finished: Finished) -> bytes:
    """One line of JSON, without its end."""
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
    try:
        document = folder.read_result(job.id, finished.number)
    except FileNotFoundError:
        raise InternalError(
            f"the result of item {finished.id[:200]!r} is gone from the disk"
        ) from None
    return b'{"cursor":%d,' % finished.cursor + document[1:]


def picture_of_line(line: bytes, form: str) -> bytes:
    """Its only map as a picture.

    Raises:
        NotAcceptable: if there is not exactly one, or it was not asked for as a picture.
        ItemFailed: if the item failed.
    """
    document = json.loads(line)
    if "error" in document:
        raise ItemFailed(f"item {document['item'][:200]!r} failed: {document['error']}")
    explanations = document["explanations"]
    if len(explanations) != 1:
        raise NotAcceptable(
            f"{form} holds exactly one map, and the item has {len(explanations)}; ask for "
            "application/json"
        )
    picture = picture_of_explanation(explanations[0])
    if picture is None:
        raise NotAcceptable("the job asked for numbers, which are no picture; ask for JSON")
    if form == "image/png":
        return picture
    with Image.open(BytesIO(picture)) as drawn:  # one of ours, RGB or gray
        return encode(np.asarray(drawn), form)


def picture_of_explanation(explanation: dict[str, object]) -> bytes | None:
    """The overlay where there is one, else the map in gray, as PNG; None where it is numbers."""
    overlay, heatmap = explanation.get("overlay"), explanation["heatmap"]
    assert isinstance(heatmap, dict)
    if isinstance(overlay, dict):
        return base64.b64decode(overlay["data"])
    return base64.b64decode(heatmap["data"]) if heatmap["encoding"] == "png" else None
