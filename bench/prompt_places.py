"""Whether the embedded model's map of a prompt lies on what the prompt means, on 20 photos: the
pointing game (Zhang et al., ECCV 2016), without a tolerance.

    pip download --no-deps --dest photos gradio==6.31.0 imgaug==0.4.0
    pip download --no-deps --dest photos matplotlib==3.11.2 ultralytics==8.4.190
    pip download --no-deps --dest photos --no-binary :all: grad-cam==1.4.0
    python -m bench.prompt_places photos

Eight photos and ten places are those of the tests; the others are read from the packages that were
downloaded. Each prompt competes with all prompts here.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from PIL import Image

from cam import ClassTarget, explain
from service.loading.served_model import load
from tests.service.sources.test_embedded_prompts import (
    PLACES,
    PROMPTS,
    Box,
    entry,
    photo,
    points_at,
    squashed,
)

BOTH: Final = "grad?cam*/both.png"
OTHERS: Final[dict[tuple[str, str], list[Box]]] = {
    (BOTH, "a dog"): [(0.35, 0.05, 0.74, 0.66)],
    (BOTH, "a cat"): [(0.20, 0.54, 0.88, 1.00)],
    ("grad?cam*/dogs.png", "a dog"): [(0.08, 0.33, 0.93, 0.83)],
    ("grad?cam*/horses.jpg", "a horse"): [(0.38, 0.44, 0.47, 0.57), (0.61, 0.47, 0.80, 0.66)],
    ("gradio*/cheetah.jpg", "a cheetah"): [(0.17, 0.35, 0.75, 0.69)],
    ("gradio*/cheetah1.jpg", "a cheetah"): [(0.09, 0.12, 0.97, 1.00)],
    ("gradio*/cheetah2.jpg", "a cheetah"): [(0.02, 0.10, 0.97, 0.97)],
    ("gradio*/lion.jpg", "a lion"): [(0.02, 0.02, 0.76, 0.95)],
    ("gradio*/tower.jpg", "a tower"): [(0.25, 0.10, 0.87, 1.00)],
    ("imgaug*/quokka.jpg", "a kangaroo"): [(0.15, 0.07, 0.58, 1.00)],
    ("matplotlib*/grace_hopper.jpg", "a military uniform"): [(0.03, 0.49, 1.00, 1.00)],
    ("ultralytics*/bus.jpg", "a bus"): [(0.01, 0.22, 0.99, 0.70)],
    ("ultralytics*/zidane.jpg", "a suit"): [(0.13, 0.42, 0.55, 1.00), (0.59, 0.35, 0.82, 1.00)],
}
"""Package and photo, and prompt → left, top, right and bottom of each thing that the prompt means,
as shares. They were drawn before a map was seen."""
CONTRASTS: Final = (("a dog", "a cat"), ("a cat", "a dog"))
"""Prompt, and what it is not, on the photo of both."""


def unpacked(folder: Path, into: Path) -> None:
    for archive in folder.iterdir():
        shutil.unpack_archive(
            archive, into / archive.name, "zip" if archive.suffix == ".whl" else None
        )


def found_in(folder: Path, name: str) -> Image.Image:
    package, file = name.split("/")
    paths = list(folder.glob(f"{package}/**/{file}"))
    if not paths:
        raise SystemExit(f"the folder has no package {package} with a photo {file}")
    return Image.open(paths[0]).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        unpacked(given.photos, Path(temporary))
        photos = {name: found_in(Path(temporary), name) for name, _ in OTHERS}
        photos |= {name: photo(name) for name, _ in PLACES}
        prompts = sorted({prompt for _, prompt in OTHERS} | set(PROMPTS))
        served = load(entry(Path(temporary), f"prompts = {json.dumps(prompts)}"))
    places = OTHERS | {place: [box] for place, box in PLACES.items()}
    hits: list[bool] = []
    for (name, prompt), boxes in places.items():
        image = squashed(served, photos[name])
        targets = [ClassTarget(prompts.index(prompt))]
        targets += [
            ClassTarget(prompts.index(prompt), minus=prompts.index(other))
            for one, other in CONTRASTS
            if one == prompt and name == BOTH
        ]
        with torch.no_grad():
            likely = prompts[int(served.module(image).argmax())]
        for target in targets:
            (found,) = explain(served.module, image, target=target)
            hit = points_at(found.map, boxes)
            contrast = "" if target.minus is None else f", not {prompts[target.minus]}"
            print(f"{'hit ' if hit else 'miss'} {name}: {prompt}{contrast} (predicted: {likely})")
            if not contrast:
                hits.append(hit)
    print(f"{sum(hits)} of {len(hits)} places on {len(photos)} photos")


if __name__ == "__main__":
    main()
