"""Every method on one photo, side by side, each with its name and what it costs.

    python -m bench.contact_sheet PHOTO TARGET [--output docs/methods.jpg] [--fit squash]

docs/methods.jpg shows docs/photos/chelsea.png and its class "Egyptian cat". Where the embedded
model cannot do a method, its tile has the reason. The methods for one box of a detector are left
out: the embedded model is a classifier and finds no boxes.
"""

from __future__ import annotations

import argparse
import io
import textwrap
import time
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from starlette.testclient import TestClient

from cam import METHODS
from service.app import create_app
from service.settings import Settings

COLUMNS, WIDTH, CAPTION, GAP = 6, 300, 44, 8
DETECTING = ("odam", "drise")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photo", type=Path)
    parser.add_argument("target")
    parser.add_argument("--output", type=Path, default=Path("docs/methods.jpg"))
    parser.add_argument("--fit", default="squash")
    arguments = parser.parse_args()
    data = arguments.photo.read_bytes()
    pictures = {"the photo": (Image.open(io.BytesIO(data)).convert("RGB"), "")}
    with TestClient(
        create_app(Settings(deadline_seconds=900, hang_seconds=600)), base_url="http://localhost"
    ) as client:
        while client.get("/readyz").status_code != 200:
            time.sleep(0.1)
        for name, method in METHODS.items():
            if name in DETECTING:
                continue
            response = client.post(
                "/v1/models/efficientnet-lite0:explain",
                params={"method": name, "target": arguments.target, "fit": arguments.fit},
                content=data,
                headers={"Content-Type": "image/png", "Accept": "image/png"},
            )
            if response.status_code == 422:  # a method that this model cannot do
                reason = response.json()["detail"].partition(": ")[2].partition(";")[0]
                pictures[name] = (_words(reason), method.cost)
                continue
            response.raise_for_status()
            pictures[name] = (Image.open(io.BytesIO(response.content)), method.cost)
    first = pictures["the photo"][0]
    height = round(WIDTH * first.height / first.width)
    rows = -(-len(pictures) // COLUMNS)
    cell = (WIDTH + GAP, height + CAPTION + GAP)
    sheet = Image.new("RGB", (COLUMNS * cell[0] + GAP, rows * cell[1] + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font, small = ImageFont.load_default(20), ImageFont.load_default(14)
    for number, (name, (picture, cost)) in enumerate(pictures.items()):
        left, top = GAP + number % COLUMNS * cell[0], GAP + number // COLUMNS * cell[1]
        sheet.paste(picture.resize((WIDTH, height), Image.Resampling.LANCZOS), (left, top))
        draw.text((left, top + height + 4), name, "black", font)
        draw.text((left, top + height + 27), cost, "gray", small)
    sheet.save(arguments.output, quality=88)


def _words(reason: str) -> Image.Image:
    tile = Image.new("RGB", (WIDTH, WIDTH * 2 // 3), (238, 238, 238))
    text = "\n".join(textwrap.wrap(reason, 30))
    ImageDraw.Draw(tile).multiline_text((16, 16), text, "gray", ImageFont.load_default(18))
    return tile


if __name__ == "__main__":
    main()
