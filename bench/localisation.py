"""Whether the heat is where the object is: two objects side by side, each asked for; and what a
map costs.

    python -m bench.localisation [--layer blocks.5] [--write docs/methods.md] [METHOD …]

All ordered pairs of {Egyptian cat, espresso, tripod, moped} stand as squares in one 448 × 224
picture and are asked for over HTTP with `fit=squash`, one at a time, the cache of answers off. For
each method: the share of the map's mass in the half with the object, mean and minimum over the 12
pairs (chance is 0.5), and the median time of a request, in requests for the prediction alone, which
are made in between. `--write` replaces the table in a document, row by row.
"""

from __future__ import annotations

import argparse
import io
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import skimage.data
from PIL import Image
from rich.console import Console
from rich.progress import track
from rich.table import Table
from starlette.testclient import TestClient

from cam import METHODS
from service.core.settings import Settings
from service.local.app import create_app

MODEL = "/v1/models/efficientnet-lite0"
PHOTOS = {
    285: skimage.data.chelsea(),
    967: skimage.data.coffee(),
    872: skimage.data.camera(),
    665: skimage.data.stereo_motorcycle()[0],
}
BEGIN, END = "<!-- localisation -->\n", "<!-- end of localisation -->"


@dataclass(frozen=True)
class Measured:
    method: str
    layer: str
    shares: list[float]
    times: float
    """A request's, in requests for the prediction alone."""


def square(index: int) -> Image.Image:
    photo = Image.fromarray(PHOTOS[index]).convert("RGB")
    side = min(photo.size)
    left, top = (photo.width - side) // 2, (photo.height - side) // 2
    box = (left, top, left + side, top + side)
    return photo.resize((224, 224), Image.Resampling.BICUBIC, box=box)


def beside(left: int, right: int) -> bytes:
    picture = Image.new("RGB", (448, 224))
    picture.paste(square(left), (0, 0))
    picture.paste(square(right), (224, 0))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def ask(client: TestClient, verb: str, photo: bytes, **query: str | int) -> tuple[bytes, float]:
    """The answer, and how many seconds it took."""
    accept = "application/x-npy" if verb == "explain" else "application/json"
    start = time.perf_counter()
    response = client.post(
        f"{MODEL}:{verb}",
        params={"fit": "squash", **query},
        content=photo,
        headers={"Content-Type": "image/png", "Accept": accept},
    )
    seconds = time.perf_counter() - start
    response.raise_for_status()
    return response.content, seconds


def measure(client: TestClient, method: str, layer: str) -> Measured:
    shares, seconds, plain = [], [], []
    for left, right in itertools.permutations(PHOTOS, 2):
        photo = beside(left, right)
        plain.append(ask(client, "predict", photo)[1])
        asked: dict[str, str | int] = {"target": right, "method": method, "layer": layer}
        body, took = ask(client, "explain", photo, **asked)
        heat = np.load(io.BytesIO(body))
        shares.append(float(heat[:, 224:].sum() / max(heat.sum(), 1e-12)))
        seconds.append(took)
    described = client.get(MODEL).json()["methods"]
    own = {each["name"]: each.get("layer") or "input" for each in described}
    used = own[method] if layer == "auto" or METHODS[method].at == "input" else layer
    return Measured(method, used, shares, median(seconds) / median(plain))


def written(found: list[Measured], former: str) -> str:
    """As a table in Markdown, with the rows of the former one that were not measured anew."""
    rows = {row.split("`")[1]: row for row in former.splitlines() if row.startswith("| `")}
    for each in found:
        rows[each.method] = (
            f"| `{each.method}` | `{each.layer}` | {np.mean(each.shares):.2f} | "
            f"{min(each.shares):.2f} | {each.times:.1f} × |"
        )
    best_first = sorted(rows.values(), key=lambda row: -float(row.split("|")[3]))
    head = ["| method | layer | mean | worst pair | time |", "|---|---|---|---|---|"]
    return "\n".join([*head, *best_first]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", metavar="METHOD")
    parser.add_argument("--layer", default="auto")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT")
    arguments = parser.parse_args()
    settings = Settings(cache_bytes=0, deadline_seconds=3600, hang_seconds=3600)
    found = []
    with TestClient(create_app(settings)) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.1)
        able = [each["name"] for each in client.get(MODEL).json()["methods"] if each["available"]]
        for method in track(arguments.methods or able):
            found.append(measure(client, method, arguments.layer))
            if arguments.write:  # it takes a while, and may be stopped
                before, _, rest = arguments.write.read_text().partition(BEGIN)
                former, _, after = rest.partition(END)
                rows = written(found, former)
                arguments.write.write_text(f"{before}{BEGIN}{rows}{END}{after}")
    table = Table("method", "layer", "mean", "minimum", "time")
    for each in found:
        mean, worst = f"{np.mean(each.shares):.3f}", f"{min(each.shares):.3f}"
        table.add_row(each.method, each.layer, mean, worst, f"{each.times:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
