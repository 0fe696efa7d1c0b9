"""Clusters of maps: how long they take, and whether suspects are found where a cheat is planted and
nowhere else.

    python -m bench.clusters [--only speed planting …] [--seeds 5] [--first 0]
        [--crops 2000] [--kinds …] [--write]

- `speed`: 10,000 maps of 14 × 14 positions with thumbnails, as one class and as 10 classes of
  1,000: seconds, seconds of CPU time and peak memory of a process of its own, with the embedding,
  and whether two runs give the same bytes, the second with the classes in reverse order
- `planting`: small classifiers that learned to use a watermark explain 1,000 photos of which 10
  carry it: recall and precision of the suspect cluster with most of them, other suspects counted as
  false; with the photos and without; corners and sizes differ
- `shortcuts`: classifiers that learned to use marks of `--kinds` (all of
  `tests/cam/clusters/marks.py`) on 5, 15 and 30 % of a class, and on all of one: how pure the
  best cluster is, recall and precision of the suspects, from the maps alone, with photos, and with
  what the model used; and what is said of the same class without marks (`bench/shortcuts.py`)
- `clean`: maps in suspect clusters when there is no cheat: maps of such classifiers and of ones
  trained without a watermark, on clean photos; synthetic blobs; the embedded model on `--crops`
  crops of photos, by predicted class
- `report`: the clusters of a batch's report with its photos, 10,000 maps of 14 × 14 positions:
  seconds and peak memory of a process of its own, and the memory that it had before

Prints JSON; `--write` stores it in bench/results/clusters.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from cam.clusters import Clusters, find, find_clusters
from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float
from tests.cam.clusters.marks import KINDS
from tests.cam.clusters.synthetic import blobs

MAPS = 10_000
MARKED = 10
PHOTOS = 1000
LEAST = 40
"""Least number of crops of a predicted class that are clustered."""

Photos = NDArray[np.uint8]
Named = tuple[str, Sequence[Float], Sequence[Photos] | None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("speed", "planting", "shortcuts", "clean", "report")
    parser.add_argument("--only", nargs="*", choices=parts, default=parts)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed of the shortcuts")
    parser.add_argument("--crops", type=int, default=2000)
    parser.add_argument("--kinds", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--inside", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--manifest", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.manifest:
        print(json.dumps(clusters_of(asked.manifest)))
        return
    if asked.inside:
        print(json.dumps(inside(int(asked.inside[0]), asked.inside[1] == "reversed")))
        return
    found: dict[str, Any] = {}
    if "speed" in asked.only:
        found["speed"] = {f"{count} classes": speed(count) for count in (1, 10)}
    if "report" in asked.only:
        found["report"] = {f"{count} classes": of_report(count) for count in (1, 10)}
    # The embedding takes most of the time and changes no cluster.
    with patch.object(find, "embed", lambda points, *_: np.zeros((len(points), 2), np.float32)):
        if "planting" in asked.only:
            found["planting"] = [planting(seed) for seed in range(asked.seeds)]
        if "shortcuts" in asked.only:
            from bench.shortcuts import of_kinds, of_whole_class

            seeds = range(asked.first, asked.first + asked.seeds)
            found["shortcuts"] = list(of_kinds(seeds, asked.kinds))
            found["mark on a whole class"] = [
                of_whole_class(kind, seed) for kind in asked.kinds or KINDS for seed in seeds
            ]
        if "clean" in asked.only:
            found["clean"] = clean(asked.seeds, asked.crops)
    print(json.dumps(found, indent=1))
    if asked.write:
        from bench.record import record

        record("clusters", **found)


def speed(classes: int) -> dict[str, Any]:
    first, second = (
        json.loads(
            subprocess.run(  # noqa: S603
                [sys.executable, "-m", "bench.clusters", "--inside", str(classes), order],
                check=True,
                capture_output=True,
                text=True,
            ).stdout
        )
        for order in ("forward", "reversed")
    )
    equal = first.pop("digests") == second.pop("digests")
    return {**first, "same bytes twice": equal}


def inside(classes: int, backwards: bool) -> dict[str, Any]:
    """Measure in this process, which imports no torch."""
    random = np.random.default_rng(0)
    each = MAPS // classes
    folders = [blobs(each, seed) for seed in range(classes)]
    for folder in folders:
        for values in folder[: each // 100]:
            values[:] = 0.3 * values
            values[-3:, -3:] = 0.9 + 0.1 * random.random((3, 3))
    photos = random.integers(0, 256, (each, 32, 32, 3), dtype=np.uint8)
    photos[: each // 100, -6:, -6:] = (255, 0, 255)
    digests = [""] * classes
    suspects = 0
    begun, worked = time.perf_counter(), time.process_time()
    for number in sorted(range(classes), reverse=backwards):
        found = find_clusters(folders[number], list(photos))
        digests[number] = digest(found)
        suspects += sum(len(cluster.members) for cluster in found.clusters if cluster.suspect)
    return {
        "seconds": round(time.perf_counter() - begun, 1),
        "CPU seconds": round(time.process_time() - worked, 1),
        "peak MB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000),
        "planted": each // 100 * classes,
        "in suspect clusters": suspects,
        "digests": digests,
    }


def of_report(classes: int) -> dict[str, Any]:
    from PIL import Image

    from tests.service.features.report.report_stage import map_row, write_manifest

    random = np.random.default_rng(0)
    covers = {"covers_left": 0, "covers_top": 0, "covers_right": 224, "covers_bottom": 224}
    with tempfile.TemporaryDirectory() as name:
        output, photos = Path(name, "batch"), Path(name, "photos")
        output.mkdir()
        photos.mkdir()
        (output / "run.json").write_text(json.dumps({"source": str(photos)}))
        rows = []
        for kind in range(classes):
            for number, values in enumerate(blobs(MAPS // classes, kind)):
                pixels = random.integers(0, 256, (8, 8, 3), np.uint8).repeat(28, 0).repeat(28, 1)
                if number < MAPS // classes // 100:
                    values *= 0.3
                    values[-3:, -3:] = 0.9 + 0.1 * random.random((3, 3))
                    pixels[-48:, -48:] = (255, 0, 255)
                row = map_row(f"{kind}-{number}.jpg", values.tolist(), **covers)
                rows.append(replace(row, target=f"class {kind}", target_index=kind))
                Image.fromarray(pixels).save(photos / row.id)
        manifest = write_manifest(output, rows)
        command = [sys.executable, "-m", "bench.clusters", "--manifest", str(manifest)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def clusters_of(manifest: Path) -> dict[str, Any]:
    """Find the clusters of a batch in this process, as its report does."""
    from service.features.batch.configuration import source_of
    from service.features.report.census import take_census
    from service.features.report.clusters import cluster_classes, portray, write_clusters
    from service.features.report.write import read_rows

    census = take_census(read_rows(manifest))
    before = peak()
    begun, worked = time.perf_counter(), time.process_time()
    with source_of(manifest.parent) as inputs:
        found = cluster_classes(
            read_rows(manifest, maps=True), census.classes, inputs.read if inputs else None, MAPS
        )
    write_clusters(found, manifest.with_suffix(".csv"))
    portray(found, manifest.parent, manifest)
    return {
        "seconds": round(time.perf_counter() - begun, 1),
        "CPU seconds": round(time.process_time() - worked, 1),
        "peak MB": peak(),
        "peak MB before": before,
        "with photos": all(each.looked for each in found),
        "suspect clusters": sum(each.suspects for each in found),
    }


def peak() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


def digest(found: Clusters) -> str:
    whole = hashlib.sha256()
    for values in (found.labels, found.embedding, found.eigenvalues):
        whole.update(values.tobytes())
    for cluster in found.clusters:
        whole.update(cluster.mean.tobytes() + repr(cluster.evidence).encode())
    return whole.hexdigest()


def planting(seed: int) -> dict[str, Any]:
    from tests.cam.clusters.scenes import WATERMARKS, maps_of, photos_of, thumbnails_of, trained

    watermark = WATERMARKS[seed % len(WATERMARKS)]
    model = trained(seed, watermark)
    photos = photos_of(0, PHOTOS, 7000 + seed, MARKED, watermark)
    maps = maps_of(model, photos)
    row: dict[str, Any] = {"seed": seed, "corner": watermark.corner, "side": watermark.side}
    for name, given in (("with photos", thumbnails_of(photos)), ("maps alone", None)):
        found = find_clusters(maps, given)
        suspects = [cluster.members for cluster in found.clusters if cluster.suspect]
        right = max((int((members < MARKED).sum()) for members in suspects), default=0)
        marked = sum(len(members) for members in suspects)
        row[name] = {
            "recall": right / MARKED,
            "precision": round(right / marked, 3) if marked else None,
            "suspect clusters": len(suspects),
        }
    return row


def clean(seeds: int, crops: int) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    kinds = {
        "classifiers": classifiers(seeds),
        "blobs": synthetic(seeds),
        "embedded model": embedded(crops),
    }
    for kind, named in kinds.items():
        maps = suspects = 0
        worst: list[str] = []
        for name, values, photos in named:
            for given in (None, photos) if photos is not None else (None,):
                found = find_clusters(values, given)
                members = sum(len(each.members) for each in found.clusters if each.suspect)
                maps, suspects = maps + len(values), suspects + members
                if members:
                    worst.append(f"{name}: {members} of {len(values)}")
        rows[kind] = {"maps": maps, "in suspect clusters": suspects, "where": worst}
    return rows


def classifiers(seeds: int) -> Iterator[Named]:
    from tests.cam.clusters.scenes import WATERMARKS, maps_of, photos_of, thumbnails_of, trained

    for seed in range(seeds):
        for watermark in (WATERMARKS[seed % len(WATERMARKS)], None):
            model = trained(seed, watermark)
            for kind in range(3):
                photos = photos_of(kind, PHOTOS, 8000 + seed)
                name = f"seed {seed}, class {kind}, {watermark}"
                yield name, maps_of(model, photos, kind), thumbnails_of(photos)


def synthetic(seeds: int) -> Iterator[Named]:
    for seed in range(seeds):
        for grid, most in ((14, 3), (7, 3), (14, 1), (7, 1)):
            name = f"seed {seed}, {grid} × {grid}, up to {most}"
            yield name, blobs(PHOTOS, 100 + seed, grid, most), None


def embedded(crops: int) -> Iterator[Named]:
    """Crops of photos, by predicted class."""
    import skimage.data
    from PIL import Image
    from sklearn.datasets import load_sample_images

    from bench.evaluation_scenes import loaded
    from cam import explain
    from service.models.catalog import EMBEDDED

    served = loaded(EMBEDDED.name)
    data = skimage.data
    wholes = [data.chelsea(), data.coffee(), data.rocket(), data.astronaut(), data.retina()]
    wholes += [data.stereo_motorcycle()[0], data.hubble_deep_field(), data.immunohistochemistry()]
    wholes += load_sample_images().images
    grey = (data.camera(), data.coins(), data.brick(), data.grass(), data.gravel(), data.moon())
    wholes += [np.repeat(each[..., None], 3, axis=2) for each in grey]
    random = np.random.default_rng(2)
    maps: dict[int, list[Float]] = {}
    thumbnails: dict[int, list[Photos]] = {}
    for _ in range(crops // 50):
        photos = []
        for _ in range(50):
            # Half of the crops are of the first three photos, so that their classes are large.
            whole = wholes[int(random.integers(3 if random.random() < 0.5 else len(wholes)))]
            size = int(random.integers(min(whole.shape[:2]) // 3, min(whole.shape[:2])))
            top, left = (int(random.integers(0, side - size + 1)) for side in whole.shape[:2])
            photo = whole[top : top + size, left : left + size][:, :: random.choice([1, -1])]
            photos.append(Image.fromarray(np.ascontiguousarray(photo)))
        pixels = [served.preprocessing.apply(each, "squash").pixels for each in photos]
        images = served.normalise(np.stack(pixels)).contiguous()
        for photo, found in zip(photos, explain(served.module, images), strict=True):
            index = found.target.index
            assert index is not None
            maps.setdefault(index, []).append(minmax(found.map))
            small = np.asarray(photo.resize((32, 32), Image.Resampling.BOX))
            thumbnails.setdefault(index, []).append(small)
    for index, values in maps.items():
        if len(values) >= LEAST:
            yield f"class {index}", values, thumbnails[index]


if __name__ == "__main__":
    main()
