"""What a billion images need: what one costs, measured here, times a billion.

    python -m bench.scaling [--images 1e9] [--hours 24] [--gpu 1000 3000 8000]

Measured in one thread, with real photos of 400 × 400 pixels: decoding, preparing, drawing and
encoding an overlay, keeping a result. What a GPU explains a second (`--gpu`) is not: this machine
has none; put there what `python -m bench.library` says of yours.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.batch import make_photos
from bench.record import record
from service.backend.work import Explain
from service.core.concurrency import explain_many
from service.core.threads import one_each
from service.features.batch.configuration import RunConfiguration
from service.features.batch.inputs import open_inputs
from service.features.batch.parts import Parts
from service.features.batch.work import UnreadImage, explain_item
from service.features.jobs.database import Database
from service.features.jobs.job_files import Folder
from service.features.jobs.leases import Store
from service.features.jobs.records import NewItem, NewJob
from service.features.jobs.submission import Submissions
from service.features.tables.rows import Row
from service.local.session import local_session
from service.pipeline.images import decode
from service.pipeline.json_records import caption_of
from service.pipeline.parameters import Parameters
from service.pipeline.rendering import draw as draw_map
from service.pipeline.resolve import questions_of
from service.settings import Settings

PHOTOS = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=float, default=1e9)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--gpu", nargs="*", type=float, default=[1000, 3000, 8000])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        one = asyncio.run(measure(Path(name)))
        one |= measure_keeping(Path(name))
    rows = [needs(one, asked.images, asked.hours, gpu) for gpu in asked.gpu]
    table = Table("of one image", "")
    for key, value in one.items():
        table.add_row(key.replace("_", " "), f"{value:.2f}")
    Console().print(table)
    table = Table("of all", *(f"{gpu:,.0f} images/s of a GPU" for gpu in asked.gpu))
    for key in rows[0]:
        table.add_row(key.replace("_", " "), *(f"{row[key]:,.1f}" for row in rows))
    Console().print(table)
    record("scaling", images=asked.images, hours=asked.hours, one=one, needs=rows)


def needs(one: dict[str, float], images: float, hours: float, gpu: float) -> dict[str, float]:
    """For so many images in so many hours, with GPUs that explain so many a second."""
    a_second = images / hours / 3600
    busy = one["decode_ms"] + one["prepare_ms"]
    cores = a_second * (busy + one["draw_ms"]) / 1000
    return {
        "images_a_second": a_second,
        "GPUs": a_second / gpu,
        "GPU_hours": images / gpu / 3600,
        "cores_with_overlays": cores,
        "cores_with_the_table_alone": a_second * busy / 1000,
        "cores_for_each_GPU": gpu * (busy + one["draw_ms"]) / 1000,
        "terabytes_in": images * one["photo_bytes"] / 1e12,
        "terabytes_of_overlays": images * one["overlay_bytes"] / 1e12,
        "terabytes_of_the_table": images * one["row_bytes"] / 1e12,
        "gigabits_a_second_in": a_second * one["photo_bytes"] * 8 / 1e9,
        "hours_as_one_job_of_the_service": images / one["results_kept_a_second"] / 3600,
    }


async def measure(folder: Path) -> dict[str, float]:
    photos, output = folder / "photos", folder / "out"
    make_photos(photos, PHOTOS)
    configuration = RunConfiguration({}, output)
    with open_inputs(str(photos)) as inputs, one_each():
        images = [inputs.read(name) for name in inputs.ids]
        async with local_session(Settings(cache_bytes=0), None) as session:
            model = session.replicas.model
            questions_of(model, Parameters())
            items = [UnreadImage(name, inputs.read) for name in inputs.ids]
            rows: list[Row] = []
            async with explain_many(
                items,
                lambda item: explain_item(session, configuration, item),
                at_once=session.at_once,
            ) as results:
                async for _, found in results:
                    assert isinstance(found, list)
                    rows += found
            decoded = [decode(image, max_pixels=10**8) for image in images]
            seen = [model.preprocessing.apply(photo, "crop") for photo in decoded]
            work = Explain(seen[0], questions_of(model, Parameters()))
            outcome = await session.replicas.ask(work)
            (explanation,) = outcome.value.explanations

            def draw(turn: int) -> None:
                photo, view = decoded[turn], seen[turn]
                caption = partial(caption_of, explanation, model, view)
                drawing = draw_map(photo, view, explanation, 0, Parameters(), caption=caption)
                drawing.encoded("image/jpeg")

            milliseconds = {
                "decode_ms": timed(lambda turn: decode(images[turn], max_pixels=10**8)),
                "prepare_ms": timed(lambda turn: model.preprocessing.apply(decoded[turn], "crop")),
                "draw_ms": timed(draw),
            }
    parts = Parts(output)
    parts.add(rows)
    parts.merge()
    pictures = [file.stat().st_size for file in (output / "pictures").rglob("*.jpg")]
    return {
        **milliseconds,
        "photo_bytes": statistics.mean(map(len, images)),
        "overlay_bytes": statistics.mean(pictures),
        "row_bytes": parts.manifest.stat().st_size / len(rows),
    }


def timed(work: Callable[[int], Any]) -> float:
    """Milliseconds of one: the median."""
    found = []
    for turn in range(PHOTOS):
        begun = time.perf_counter()
        work(turn)
        found.append(1000 * (time.perf_counter() - begun))
    return statistics.median(found)


def measure_keeping(folder: Path, count: int = 300) -> dict[str, float]:
    """How many results a second jobs keep: a file and a transaction each, on the disk."""
    place = folder / "jobs"
    files = Folder(place)
    with Database(place, None) as database:
        arrivals, store = Submissions(database), Store(database)
        store.enlist("bench")
        new = NewJob("m", "w", Parameters(), "")
        job = arrivals.begin("bench", new)
        arrivals.add(job, 0, [NewItem(str(number), {"blob": [0, 0]}) for number in range(count)])
        arrivals.accept(job, new, total=count, size=0, digest="", warnings=[])
        begun = time.perf_counter()
        while leased := store.lease("bench", [("m", "w")], 16):
            for item in leased:
                files.write_result(item.job, item.number, b"{}" * 10_000)
                store.settle("bench", item, None, 20_000)
        return {"results_kept_a_second": count / (time.perf_counter() - begun)}


if __name__ == "__main__":
    main()
