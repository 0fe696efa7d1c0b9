"""What five methods cost in one request, beside one method and the prediction alone.

    python -m bench.several_methods [--rounds 30]

The embedded model over HTTP in process, the cache of answers off, requests in turns, medians in
milliseconds: at the default layer, behind which there is no backward pass, and at blocks.5.
"""

from __future__ import annotations

import argparse
import io
import time
from statistics import median
from typing import Any

import skimage.data
from PIL import Image
from rich.console import Console
from rich.table import Table
from starlette.testclient import TestClient

from service.app import create_app
from service.settings import Settings

MODEL = "/v1/models/efficientnet-lite0"
FIVE = ["gradcam", "hirescam", "layercam", "xgradcam", "fem"]
SMALL = {"size": "layer", "output": "values"}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "prediction": ("predict", {}),
    "one method": ("explain", {**SMALL, "method": FIVE[0], "layer": "bn2"}),
    "five methods": ("explain", {**SMALL, "method": FIVE, "layer": "bn2"}),
    "one method at blocks.5": ("explain", {**SMALL, "method": FIVE[0], "layer": "blocks.5"}),
    "five methods at blocks.5": ("explain", {**SMALL, "method": FIVE, "layer": "blocks.5"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    file = io.BytesIO()
    Image.fromarray(skimage.data.chelsea()).save(file, "PNG")
    taken: dict[str, list[float]] = {name: [] for name in ASKED}
    with TestClient(create_app(Settings(cache_bytes=0)), base_url="http://localhost") as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.1)
        for turn in range(rounds + 3):
            for name, (verb, query) in ASKED.items():
                start = time.perf_counter()
                response = client.post(
                    f"{MODEL}:{verb}",
                    params={"fit": "squash", **query},
                    content=file.getvalue(),
                    headers={"Content-Type": "image/png"},
                )
                response.raise_for_status()
                if turn >= 3:
                    taken[name].append(time.perf_counter() - start)
    table = Table("asked", "ms", "× the prediction")
    for name, seconds in taken.items():
        ratio = median(seconds) / median(taken["prediction"])
        table.add_row(name, f"{median(seconds) * 1000:.1f}", f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
