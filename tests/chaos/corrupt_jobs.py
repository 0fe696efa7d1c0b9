"""A large job of which some photos are none."""

from __future__ import annotations

import tempfile
import time
from collections import Counter

from tests.chaos.bringing import bring, lines_of, until_done
from tests.chaos.crops import crops
from tests.chaos.finding import Finding
from tests.chaos.spoilt import KINDS
from tests.chaos.stage import Client, staged

MODEL = 'name = "lite"\nsource = "embedded:efficientnet-lite0"'
COUNT = 5000
LEAST = 200
"""Smallest number of photos; one of every kind among them is corrupt."""


async def corrupt(scale: float) -> list[Finding]:
    """Corrupt photos of several kinds in a job: each fails alone, and says why."""
    images = crops(max(int(COUNT * scale), LEAST), seed=5)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, staged(MODEL, jobs=folder) as stage:
        async with Client(stage.port) as client:
            job, _ = await bring(client, images.packed(), "corrupt")
            document = await until_done(client, job)
            lines = await lines_of(client, job)
    took = time.monotonic() - begun
    counts = document["counts"]
    failed = {line["item"]: line["problem"] for line in lines if "error" in line}
    why = {
        kind: Counter(
            (failed[name]["status"], failed[name]["title"])
            for name, of in images.corrupt.items()
            if of == kind and name in failed
        )
        for kind in KINDS
    }
    said = "; ".join(
        f"{kind}: {sum(each.values())} × " + " or ".join(f"{s} {t!r}" for s, t in each)
        for kind, each in why.items()
        if each
    )
    count, wrong = len(images.images), len(images.corrupt)
    return [
        Finding(
            f"a job of {count:,} photos, {wrong} of them corrupt",
            "counts exact; each failure says why, and no other photo fails",
            f"{counts['done']:,} done, {counts['failed']} failed; {said}; "
            f"{document['rate']:.0f} images/s, {took:.0f} s",
            counts == {"total": count, "done": count - wrong, "failed": wrong, "left": 0}
            and failed.keys() == images.corrupt.keys()
            and all(len(problem["detail"]) > 20 for problem in failed.values())
            and all(400 <= problem["status"] < 500 for problem in failed.values()),
        )
    ]
