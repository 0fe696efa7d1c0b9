"""What is asked of jobs, as requests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl, urlsplit

import numpy as np
from PIL import Image

from service.client.answers import Answer
from service.client.calls import JSON, Call, get, query_of, require_name, step, to_json
from service.client.failures import seconds_until
from service.client.job_documents import JobDocument
from service.client.photos import Photo, instance_of

NDJSON = "application/x-ndjson"
FILES = {
    ".zip": "application/zip",
    ".tar": "application/x-tar",
    ".tar.gz": "application/gzip",
    ".tgz": "application/gzip",
    ".ndjson": NDJSON,
    ".jsonl": NDJSON,
}
"""Of archives and manifests, by what their names end in."""
CHUNK_BYTES = 1 << 16
BROKEN = "the stream of events broke off"
FIRST_LOOK, LONGEST_LOOK = 0.1, 10.0
"""Seconds between looks at a job."""

Photos = str | PathLike[str] | Mapping[str, Photo] | Iterable[Photo | Mapping[str, Any]]
"""What a job is made of: the path of an archive (.zip, .tar, .tar.gz, .tgz) or of a manifest
(.ndjson, .jsonl, an instance a line); photos by their ids; photos, whose paths are their ids; or
instances as in JSON, with a target, method or layer of their own, whose image may be any photo."""


def submit(
    photos: Photos, model: str | None, parameters: Mapping[str, Any], key: str | None
) -> Call:
    """
    Raises:
        OSError: if there is no such archive or manifest.
        TypeError, ValueError: if it is nothing that a job can be made of.
    """
    query = query_of({"model": model, **parameters})
    headers = {"Accept": JSON, "Idempotency-Key": key or uuid.uuid4().hex}
    if isinstance(photos, (str, PathLike)):
        path = Path(photos)
        ending = next((each for each in FILES if path.name.lower().endswith(each)), None)
        if ending is None:
            raise ValueError(
                f"{fspath(photos)!r} is neither an archive nor a manifest, which end in "
                f"{', '.join(FILES)}; of photos, give a list"
            )
        size = str(path.stat().st_size)
        headers |= {"Content-Type": FILES[ending], "Content-Length": size}
        return Call("POST", "/v1/jobs", query, headers, lambda: _chunks(path), bulky=True)
    if isinstance(photos, (bytes, bytearray, memoryview, np.ndarray, Image.Image)):
        raise TypeError("a job is made of several photos; give a list of them")
    items: list[Any]
    if isinstance(photos, Mapping):
        items = [{"id": name, "image": photo} for name, photo in photos.items()]
    else:
        items = list(photos)
    headers["Content-Type"] = NDJSON
    return Call("POST", "/v1/jobs", query, headers, lambda: _lines(items), bulky=True)


def listed(state: str | None, limit: int) -> Call:
    return get("/v1/jobs", state=state, limit=limit)


def listed_next(address: str) -> Call:
    """The page that another one names; its query alone, so that it leads nowhere else."""
    return Call("GET", "/v1/jobs", tuple(parse_qsl(urlsplit(address).query)))


def document(job: str) -> Call:
    return get(_path(job))


def events(job: str) -> Call:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return Call("GET", f"{_path(job)}/events", headers=headers, bulky=True)


def results(job: str, after: int, limit: int) -> Call:
    return get(f"{_path(job)}/results", after=after, limit=limit)


def lines_of(answer: Answer) -> list[bytes]:
    return [line for line in answer.body.split(b"\n") if line.strip()]


def result(job: str, item: str, accept: str = JSON) -> Call:
    require_name("id of the item", item)
    path = f"{_path(job)}/results/{'/'.join(map(step, item.split('/')))}"
    return Call("GET", path, headers={"Accept": accept})


def archive(job: str, path: Path, form: str | None) -> Call:
    """
    Raises:
        ValueError: if the format is neither said nor to be seen from the path.
    """
    form = form or {".zip": "zip", ".parquet": "parquet"}.get(path.suffix.lower())
    if form not in ("zip", "parquet"):
        raise ValueError(
            f"the format of {path.name!r} is not known; name it .zip or .parquet, or say "
            "format='zip' or format='parquet'"
        )
    return Call("GET", f"{_path(job)}/archive", (("format", form),), bulky=True)


def cancel(job: str) -> Call:
    return Call("DELETE", _path(job))


def purge(job: str) -> Call:
    return Call("DELETE", _path(job), (("purge", "true"),))


@contextmanager
def arriving(path: Path) -> Iterator[BinaryIO]:
    """A file to be at `path` once it is whole; until then, and if it never is, nothing changes
    there."""
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class Rhythm:
    """How long to wait between looks at a job: short at first, then as the service says."""

    def __init__(self) -> None:
        self._next = FIRST_LOOK

    def pause(self, answer: Answer) -> float:
        """Seconds until the next look, after one that `answer` came of."""
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


def _path(job: str) -> str:
    require_name("id of the job", job)
    return f"/v1/jobs/{step(job)}"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _lines(items: Iterable[Any]) -> Iterator[bytes]:
    for index, item in enumerate(items):
        yield to_json(instance_of(item, index)) + b"\n"
