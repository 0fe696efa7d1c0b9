"""The requests that concern jobs."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from PIL import Image

from service.client.calls import JSON, Request, get, query_of, require_name, step, to_json
from service.client.failures import seconds_until
from service.client.photos import Photo, instance_of
from service.client.responses import Response
from service.features.jobs.schemas import JobDocument

NDJSON = "application/x-ndjson"
FILES = {
    ".zip": "application/zip",
    ".tar": "application/x-tar",
    ".tar.gz": "application/gzip",
    ".tgz": "application/gzip",
    ".ndjson": NDJSON,
    ".jsonl": NDJSON,
}
"""Suffix of an archive or manifest → media type."""
JOBS, AUDITS = "/v1/jobs", "/v1/audits"
CHUNK_BYTES = 1 << 16
BROKEN = "the stream of events broke off"
FIRST_LOOK, LONGEST_LOOK = 0.1, 10.0
"""Shortest and longest time between two requests for the status of a job, in seconds."""

Photos = str | PathLike[str] | Mapping[str, Photo] | Iterable[Photo | Mapping[str, Any]]
"""The images of a job: the path of an archive (.zip, .tar, .tar.gz, .tgz) or of a manifest
(.ndjson, .jsonl, one instance on each line); a mapping of ids to photos; photos, whose paths become
their ids; or instances as in JSON, which may have their own target, method or layer and whose image
may be any photo."""


def submit(
    photos: Photos,
    model: str | None,
    parameters: Mapping[str, Any],
    key: str | None,
    *,
    path: str = JOBS,
) -> Request:
    """Return the request that submits a job.

    Args:
        key: idempotency key; None for a random one.
        path: of the collection to which the job is added: jobs or audits.

    Raises:
        OSError: if the archive or manifest does not exist.
        TypeError: if `photos` is a single photo.
        ValueError: if `photos` is the path of another kind of file.
    """
    query = query_of({"model": model, **parameters})
    headers = {"Accept": JSON, "Idempotency-Key": key or uuid.uuid4().hex}
    if isinstance(photos, (str, PathLike)):
        file = Path(photos)
        ending = next((suffix for suffix in FILES if file.name.lower().endswith(suffix)), None)
        if ending is None:
            raise ValueError(
                f"{fspath(photos)!r} is neither an archive nor a manifest, which end in "
                f"{', '.join(FILES)}; of photos, give a list"
            )
        size = str(file.stat().st_size)
        headers |= {"Content-Type": FILES[ending], "Content-Length": size}
        return Request("POST", path, query, headers, lambda: _chunks(file), bulky=True)
    if isinstance(photos, (bytes, bytearray, memoryview, np.ndarray, Image.Image)):
        raise TypeError("a job is made of several photos; give a list of them")
    items: list[Any]
    if isinstance(photos, Mapping):
        items = [{"id": name, "image": photo} for name, photo in photos.items()]
    else:
        items = list(photos)
    headers["Content-Type"] = NDJSON
    return Request("POST", path, query, headers, lambda: _lines(items), bulky=True)


def listed(state: str | None, limit: int) -> Request:
    return get(JOBS, state=state, limit=limit)


def listed_next(address: str) -> Request:
    """Return the request for the next page of a list. Only the query of the address is used, so
    that the request always goes to the same service."""
    return Request("GET", JOBS, tuple(parse_qsl(urlsplit(address).query)))


def document(job: str) -> Request:
    return get(_path(job))


def events(job: str) -> Request:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return Request("GET", f"{_path(job)}/events", headers=headers, bulky=True)


def results(job: str, after: int, limit: int, *, maps: bool = True) -> Request:
    left_out = None if maps else "false"
    return get(f"{_path(job)}/results", after=after, limit=limit, maps=left_out)


def lines_of(answer: Response) -> list[bytes]:
    return [line for line in answer.body.split(b"\n") if line.strip()]


def result(job: str, item: str, accept: str = JSON, width: int | None = None) -> Request:
    require_name("id of the item", item)
    path = f"{_path(job)}/results/{'/'.join(map(step, item.split('/')))}"
    return replace(get(path, width=width), headers={"Accept": accept})


def archive(job: str, path: Path, form: str | None) -> Request:
    """Return the request for all results in one file.

    Raises:
        ValueError: if the format is neither given nor recognisable from the path.
    """
    form = form or {".zip": "zip", ".parquet": "parquet"}.get(path.suffix.lower())
    if form not in ("zip", "parquet"):
        raise ValueError(
            f"the format of {path.name!r} is not known; name it .zip or .parquet, or say "
            "format='zip' or format='parquet'"
        )
    return Request("GET", f"{_path(job)}/archive", (("format", form),), bulky=True)


def clusters(job: str) -> Request:
    return Request("GET", f"{_path(job)}/clusters", headers={"Accept": JSON}, bulky=True)


def audit(job: str) -> Request:
    return get(_path(job, AUDITS))


def audit_report(job: str) -> Request:
    headers = {"Accept": "text/html"}
    return Request("GET", f"{_path(job, AUDITS)}/report", headers=headers, bulky=True)


def cancel(job: str) -> Request:
    return Request("DELETE", _path(job))


def purge(job: str) -> Request:
    return Request("DELETE", _path(job), (("purge", "true"),))


class Rhythm:
    """Intervals between requests for the status of a job. They grow from a short one, within the
    limit of the service's `Retry-After`."""

    def __init__(self) -> None:
        self._next = FIRST_LOOK

    def pause(self, answer: Response) -> float:
        """Return the seconds until the next request, after the one that returned `answer`."""
        said = seconds_until(answer.headers.get("retry-after"))
        longest = LONGEST_LOOK if said is None else min(said, LONGEST_LOOK)
        pause, self._next = self._next, min(self._next * 2, LONGEST_LOOK)
        return max(min(pause, longest), FIRST_LOOK)


def not_yet(seen: JobDocument, seconds: float) -> str:
    counts = seen.counts
    return (
        f"the job {seen.id} is {seen.state} after {seconds:g} s: {counts.done} of {counts.total} "
        f"done, {counts.failed} failed"
    )


def _path(job: str, collection: str = JOBS) -> str:
    require_name("id of the job", job)
    return f"{collection}/{step(job)}"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _lines(items: Iterable[Any]) -> Iterator[bytes]:
    for index, item in enumerate(items):
        yield to_json(instance_of(item, index)) + b"\n"
