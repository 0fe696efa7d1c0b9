"""What an actor of a batch does with blocks of photos, without a cluster.

    python -m tests.ray.actors FOLDER

says in JSON what came of it. It is a process of its own, for an actor lives as long as its process.
"""

from __future__ import annotations

import json
import os
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

import service.engine.lifecycle
import service.local.session
from service.core.disk_cache import OFF, DiskCache
from service.core.errors import Problem
from service.features.batch.configuration import RunConfiguration
from service.features.batch.decoder import DECODED
from service.features.batch.on_ray import Explainers
from service.features.batch.parts import Parts
from service.loading.served_model import ServedModel, load
from service.models.catalog import ModelEntry
from service.settings import Settings
from tests.service.features.batch.batches import catalog


def main(folder: Path) -> None:
    print(json.dumps({"targets": _targets(folder), "dead": _dead(folder)}), flush=True)
    os._exit(0)  # with all that the actors hold


def _targets(folder: Path) -> dict[str, Any]:
    """A block of a table: two images, one of them with a target that there is not, and a song."""
    fake = {"id": "fake", "target": "1", "error": "it is a song", "problem": "urn:…"}
    block = [_photo("black", "2"), _photo("gray", "7"), _photo("red"), fake]
    output = folder / "targets"
    explainers = _explainers(folder, "tiny", output)
    told = explainers(pa.Table.from_pylist(block, DECODED)).to_pylist()
    otherwise = Parts(output).asked_otherwise({"black": "2", "gray": "7", "fake": "1"})
    return {"told": told, "failed": sorted(Parts(output).failed()), "otherwise": sorted(otherwise)}


def _dead(folder: Path) -> dict[str, Any]:
    """A model that hangs at a white image, and cannot be loaded a second time."""
    service.local.session.REVIVAL_SECONDS = 0.2  # type: ignore[misc]
    loads = [load]

    def once(entry: ModelEntry, cache: DiskCache = OFF) -> ServedModel:
        return loads.pop()(entry, cache)

    service.engine.lifecycle.load = once  # type: ignore[attr-defined]
    output = folder / "dead"
    explainers = _explainers(folder, "stuck", output)
    explainers(pa.Table.from_pylist([_photo("black")], DECODED))
    try:
        explainers(pa.Table.from_pylist([_photo("white"), _photo("gray")], DECODED))
    except Problem as problem:
        raised = type(problem).__name__
    else:
        raised = ""
    return {"raised": raised, "finished": sorted(Parts(output).finished())}


def _explainers(folder: Path, model: str, output: Path) -> Explainers:
    models = Path(catalog(folder, model, max_batch=1))
    return Explainers(Settings(models=models, hang_seconds=0.5), RunConfiguration({}, output), None)


def _photo(colour: str, target: str | None = None) -> dict[str, Any]:
    image = BytesIO()
    Image.new("RGB", (32, 32), colour).save(image, "BMP")
    return {"id": colour, "target": target, "image": image.getvalue()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
