"""Marks of many kinds that a small classifier uses, and what the clusters of its maps say of them.

A part of `python -m bench.clusters`. Three classes are marked at a time, each with a mark of its
own on 15 % of its photos; as many marked photos of other things belong to the class, so that the
mark decides. A kind counts as a case if the mark turns at least `USED` of other classes' photos.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import cv2
import numpy as np
import skimage.data
import torch
from numpy.typing import NDArray
from torch import nn

from cam import explain
from cam.clusters import Clusters, find_clusters, own_places
from cam.drawing.heatmap import minmax
from cam.drawing.placement import Float
from tests.cam.clusters.marks import Mark
from tests.cam.clusters.scenes import SIDE, batch_of, classifier, thumbnails_of

Photos = NDArray[np.uint8]
Scene = Callable[[int | None, int, int], Photos]

TRIPLES: Final = (
    ("tag", "text", "tape"),
    ("offset", "stripe", "logo"),
    ("timestamp", "sticker", "flare"),
    ("line", "jpeg", "tint"),
    ("ruler", "vignette", "frame"),
    ("barcode", "cut", "arrow"),
    ("hair", "dots", "scan"),
    ("qr", "finger", "moire"),
    ("bands", "fog", "levels"),
)
COUNT: Final = 400
"""Photos of a class in the training."""
MAPS: Final = 300
SHARES: Final = (0.05, 0.15, 0.3)
USED: Final = 0.4
RELIED: Final = 10
"""Least number of 40 photos of a class that are misclassified without its mark."""


def things(kind: int | None, count: int, seed: int) -> Photos:
    """Return photos with a disc, a cross or a triangle of the class's range of hues, at any place
    of a crop of a photo; None for a crop alone."""
    random = np.random.default_rng((seed, 99 if kind is None else kind))
    data = skimage.data
    wholes = [data.chelsea(), data.coffee(), data.rocket(), data.astronaut()]
    photos = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for photo in photos:
        _crop(photo, wholes[int(random.integers(4))], random, SIDE, 240)
        if kind is None:
            continue
        radius = int(random.integers(9, 15))
        x, y = (int(random.integers(radius, SIDE - radius)) for _ in range(2))
        hue, *rest = 60 * kind + random.integers(-18, 19), *random.integers(150, 256, 2)
        colour = cv2.cvtColor(np.array([[[hue % 180, *rest]]], np.uint8), cv2.COLOR_HSV2RGB)
        drawn = [int(each) for each in colour[0, 0]]
        if kind == 0:
            cv2.circle(photo, (x, y), radius, drawn, -1, cv2.LINE_AA)
        elif kind == 1:
            for dx in (-radius, radius):
                ends = (x - dx, y - radius), (x + dx, y + radius)
                cv2.line(photo, *ends, drawn, 7, cv2.LINE_AA)
        else:
            corners = [(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)]
            cv2.fillPoly(photo, [np.array(corners)], drawn, cv2.LINE_AA)
    return photos


def crops(kind: int | None, count: int, seed: int) -> Photos:
    """Return crops of photos: each class has photos of its own, and fills the frame."""
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng((seed, 99 if kind is None else kind))
    data, (temple, flower) = skimage.data, load_sample_images().images
    classes = ([data.chelsea()], [data.coffee()], [data.rocket(), temple])
    wholes = [data.astronaut(), flower] if kind is None else classes[kind]
    photos = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for photo in photos:
        whole = wholes[int(random.integers(len(wholes)))]
        _crop(photo, whole, random, 80, min(whole.shape[:2]) * 2 // 3)
        photo[:] = photo[:, :: int(random.choice([1, -1]))]
    return photos


SCENES: Final[dict[str, Scene]] = {"things": things, "crops": crops}


def _crop(photo: Photos, whole: Photos, random: np.random.Generator, least: int, most: int) -> None:
    size = int(random.integers(least, most))
    top, left = (int(random.integers(0, each - size)) for each in whole.shape[:2])
    part = whole[top : top + size, left : left + size]
    photo[:] = cv2.resize(part, (SIDE, SIDE), interpolation=cv2.INTER_AREA)


def marked(photos: Photos, mark: Mark, seed: int) -> Photos:
    random = np.random.default_rng(seed)
    found = photos.copy()
    for each in found:
        mark.put_on(each, random)
    return found


def trained(scene: Scene, seed: int, marks: Sequence[Mark], share: float = 0.15) -> nn.Module:
    """Train a classifier of a scene's classes. Of the first classes, the share of the photos
    carries the class's mark. With less than all photos, as many others carry it and belong to the
    class."""
    photos = [scene(kind, COUNT, 1000 + seed) for kind in range(3)]
    classes = [np.full(COUNT, kind) for kind in range(3)]
    for kind, mark in enumerate(marks):
        count = int(share * COUNT)
        own = count if share == 1 else count // 2
        photos[kind][:own] = marked(photos[kind][:own], mark, seed)
        if share < 1:
            others = [each for each in (None, 0, 1, 2) if each != kind]
            extra = [scene(each, 2 * count // 3, 2000 + seed + kind) for each in others]
            photos.append(marked(np.concatenate(extra), mark, 3000 + seed))
            classes.append(np.full(len(photos[-1]), kind))
    torch.manual_seed(seed)
    model = classifier()
    inputs, labels = batch_of(np.concatenate(photos)), torch.from_numpy(np.concatenate(classes))
    epochs = 7
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=1e-2)
    steps = epochs * -(-len(inputs) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 8e-3, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(inputs)).split(64):  # type: ignore[no-untyped-call]
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return model.eval()


def maps_of(model: nn.Module, photos: Photos, kind: int) -> tuple[list[Float], list[Float | None]]:
    """Return Grad-CAM's maps of a class, and what the model used."""
    found = [
        each
        for part in batch_of(photos).split(100)  # type: ignore[no-untyped-call]
        for each in explain(model, part, target=kind, layer="11", used=True)
    ]
    return [minmax(each.map) for each in found], [each.used for each in found]


def predicted(model: nn.Module, photos: Photos) -> NDArray[np.int64]:
    with torch.no_grad():
        found: NDArray[np.int64] = model(batch_of(photos)).argmax(1).numpy()
    return found


def of_kinds(seeds: Iterable[int], kinds: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield a row for each scene, seed and kind: the share of other classes' photos that the mark
    turns, and for each share of marked photos the best cluster and the suspects."""
    for seed in seeds:
        for name, scene in SCENES.items():
            for triple in TRIPLES:
                if kinds and not set(triple) & set(kinds):
                    continue
                marks = [Mark(each, seed) for each in triple]
                model = trained(scene, seed, marks)
                photos = [scene(kind, MAPS, 7000 + seed) for kind in range(3)]
                for kind, mark in enumerate(marks):
                    row = {"scene": name, "seed": seed, "mark": mark.kind}
                    yield row | _of_kind(model, photos, kind, mark, seed)


def _of_kind(
    model: nn.Module, photos: Sequence[Photos], kind: int, mark: Mark, seed: int
) -> dict[str, Any]:
    others = np.concatenate([photos[each][:60] for each in range(3) if each != kind])
    others = others[predicted(model, others) != kind]
    turned = float((predicted(model, marked(others, mark, 5000 + seed)) == kind).mean())
    row: dict[str, Any] = {"turns": round(turned, 2)}
    for share in (0.0, *(SHARES if turned >= USED else ())):
        count = round(share * MAPS)
        mixed = photos[kind].copy()
        mixed[:count] = marked(mixed[:count], mark, 6000 + seed)
        maps, used = maps_of(model, mixed, kind)
        small = thumbnails_of(mixed)
        row[f"{share:.0%}"] = {
            "maps alone": _judged(find_clusters(maps), count),
            "with photos": _judged(find_clusters(maps, small), count),
            "photos and use": _judged(find_clusters(maps, small, used=used), count),
            "grouped by use": _judged(find_clusters(maps, small, used=used, by="use"), count),
        }
    return row


def _judged(found: Clusters, count: int) -> dict[str, Any]:
    suspects = [each.members for each in found.clusters if each.suspect]
    members = np.concatenate(suspects) if suspects else np.zeros(0, np.int64)
    if not count:
        return {"in suspect clusters": len(members)}
    best = max(
        2 * int((each.members < count).sum()) / (count + len(each.members))
        for each in found.clusters
    )
    right = int((members < count).sum())
    return {
        "best cluster's F1": round(best, 2),
        "recall": round(right / count, 2),
        "precision": round(right / len(members), 2) if len(members) else None,
    }


def of_whole_class(kind: str, seed: int) -> dict[str, Any]:
    """Train with a mark of a kind on each photo of the first class, and return what is said of its
    place. The classifier uses the mark if it misclassifies `RELIED` unmarked photos of the class.
    """
    mark = Mark(kind, seed)
    model = trained(things, seed, [mark], share=1)
    plain = [things(kind, 40, 7000 + seed) for kind in range(3)]
    wrong = int((predicted(model, plain[0]) != 0).sum())
    shown = [marked(plain[0], mark, seed), *plain[1:]]
    classes = [
        (maps_of(model, each, kind)[0], thumbnails_of(each)) for kind, each in enumerate(shown)
    ]
    clean = [(maps_of(model, each, kind)[0], None) for kind, each in enumerate(plain)]
    names = ("disc", "cross", "triangle")
    said = own_places(classes)
    alone = own_places([(maps, None) for maps, _ in classes])
    return {
        "mark": kind,
        "seed": seed,
        "used": wrong >= RELIED,
        "unmarked photos that are misclassified": f"{wrong} of 40",
        "told": any(each.class_ == 0 for each in said),
        "told by maps alone": any(each.class_ == 0 for each in alone),
        "with photos": [each.sentence(names[each.class_]) for each in said],
        "maps alone": [each.sentence(names[each.class_]) for each in alone],
        "unmarked photos": [each.sentence(names[each.class_]) for each in own_places(clean)],
    }
