"""A small picture of every method on one photo, for docs/methods.md.

    python -m bench.method_pictures [--photo FILE] [--target CLASS] [--output FOLDER] [METHOD …]

Each is the overlay that `:explain` draws, with the embedded model and the method's own layer and
budget, made smaller; of methods that make a map of single pixels the heatmap, for an overlay would
hide them. A method that the model cannot do gets no picture: its reason is printed.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from pathlib import Path

from fastapi import FastAPI
from PIL import Image
from starlette.testclient import TestClient

from cam import METHODS
from service.app import create_app
from service.settings import Settings

WIDTH, QUALITY = 256, 80
FINE = {
    *("gradient", "smoothgrad", "integratedgradients", "expectedgradients"),
    *("guidedbackprop", "guidedgradcam"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="METHOD")
    parser.add_argument("--photo", type=Path, default=Path("docs/photos/coffee.png"))
    parser.add_argument("--target", default="espresso")
    parser.add_argument("--fit", default="squash")
    parser.add_argument("--output", type=Path, default=Path("docs/methods"))
    arguments = parser.parse_args()
    arguments.output.mkdir(exist_ok=True)
    data = arguments.photo.read_bytes()
    _save(data, arguments.output / "photo.jpg")
    with (
        tempfile.TemporaryDirectory() as jobs,
        TestClient(_app(Path(jobs)), base_url="http://localhost") as client,
    ):
        while client.get("/readyz").status_code != 200:
            time.sleep(0.1)
        for name in arguments.names or METHODS:
            began = time.perf_counter()
            response = client.post(
                "/v1/models/efficientnet-lite0:explain",
                params={
                    "method": name,
                    "target": arguments.target,
                    "fit": arguments.fit,
                    "output": "heatmap" if name in FINE else "overlay",
                },
                content=data,
                headers={"Content-Type": "image/png", "Accept": "image/png"},
            )
            if response.status_code == 422:
                reason = response.json()["detail"].partition("; it can do")[0]
                print(f"{name}: no picture: {reason}", flush=True)
                continue
            response.raise_for_status()
            size = _save(response.content, arguments.output / f"{name}.jpg")
            print(f"{name}: {size:,} bytes, {time.perf_counter() - began:.1f} s", flush=True)


def _app(jobs: Path) -> FastAPI:
    return create_app(Settings(deadline_seconds=900, hang_seconds=600, jobs=jobs))


def _save(data: bytes, file: Path) -> int:
    """The picture as a JPEG of WIDTH pixels; how many bytes it has."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    height = round(WIDTH * picture.height / picture.width)
    picture.resize((WIDTH, height), Image.Resampling.LANCZOS).save(file, quality=QUALITY)
    return file.stat().st_size


if __name__ == "__main__":
    main()
