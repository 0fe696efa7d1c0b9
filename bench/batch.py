"""A folder of photos: `gradcam batch`, a job, Ray, the engine alone, a plain pytorch-grad-cam loop.

    python -m bench.batch [--models resnet50 efficientnet-lite0] [--photos 300] [--rounds 3]
                          [--only engine folder job loop] [--ray 1 2] [--memory 1000 20000]
                          [--write batch]

Real photos, no two alike, 400 × 400 pixels, as JPEG; of each an overlay as JPEG. Each contender is
a process of its own, alone; they take turns, and the medians are compared. What a process takes to
start and to load the model is measured with one photo and taken off, and told.

- `engine`: this package in one process, photos and overlays in memory
- `folder`: `gradcam batch`, with a file for each overlay and the table
- `job`: `POST /v1/jobs` of a zip, until it is done
- `ray N`: `gradcam batch --ray` on a cluster of N nodes of this machine
- `loop`: pytorch-grad-cam as people write it, one photo at a time

`--ray` starts Ray, which listens on every interface: run it where nobody else is, as in
`unshare -n bash -c 'ip link set lo up; python -m bench.batch --ray 1 2'`.
`--memory` is the folder command with a tiny model: most memory at each number of photos.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import skimage.data
from PIL import Image
from rich.console import Console
from rich.table import Table

from bench.record import record
from bench.service import started

RESNET = """
[[models]]
name = "resnet50"
source = "torchvision:resnet50"
weights = "none"
"""
TINY = """
[[models]]
name = "tiny"
source = "timm:test_resnet"
weights = "none"
"""
ROOT = Path(__file__).parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=["resnet50", "efficientnet-lite0"])
    parser.add_argument("--photos", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=["engine", "folder", "job", "loop"])
    parser.add_argument("--ray", nargs="*", type=int, default=[])
    parser.add_argument("--memory", nargs="*", type=int, default=[])
    parser.add_argument("--write", default="batch", help="a name for bench/results/NAME.json")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        speeds = {
            model: compare(model, folder / model, asked.photos, asked.rounds, asked.only, asked.ray)
            for model in asked.models
        }
        memory = [measure_memory(count, folder / f"memory{count}") for count in asked.memory]
    for model, rows in speeds.items():
        show(model, rows)
    for row in memory:
        print(
            f"{row['photos']} photos: at most {row['megabytes']:.0f} MB, {row['rate']:.0f} a second"
        )
    if speeds:
        record(asked.write, photos=asked.photos, rounds=asked.rounds, speeds=speeds)
    if memory:
        record("batch_memory", memory=memory)


def show(model: str, rows: dict[str, dict[str, float]]) -> None:
    table = Table("contender", "images/s", "of the engine", "of the loop", "start, s", title=model)
    for name, row in rows.items():
        of = [
            f"{row['rate'] / rows[other]['rate']:.2f}" if other in rows else ""
            for other in ("engine", "loop")
        ]
        table.add_row(name, f"{row['rate']:.1f}", *of, f"{row['start']:.1f}")
    Console().print(table)


def compare(
    model: str, folder: Path, photos: int, rounds: int, only: list[str], nodes: list[int]
) -> dict[str, dict[str, float]]:
    many, one = folder / "photos", folder / "one"
    make_photos(many, photos)
    make_photos(one, 1)
    catalog = folder / "models.toml"
    catalog.write_text(RESNET)
    around = {**os.environ, "PYTHONPATH": str(ROOT)}
    if model == "resnet50":
        around["GRADCAM_MODELS"] = str(catalog)
    known: dict[str, Callable[[Path], float]] = {
        "engine": lambda source: inside(["engine", str(source)], around),
        "folder": lambda source: batch(source, around),
        "job": lambda source: job(source, catalog if model == "resnet50" else None),
        "loop": lambda source: inside(["loop", str(source), model], around),
        **{f"ray {count}": partial(ray, around, count) for count in nodes},
    }
    contenders = {name: run for name, run in known.items() if name in only or "ray" in name}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    starts: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            starts[name].append(run(one))
            seconds[name].append(run(many))
    return {
        name: {
            "rate": (photos - 1)
            / statistics.median(
                whole - start for whole, start in zip(seconds[name], starts[name], strict=True)
            ),
            "start": statistics.median(starts[name]),
        }
        for name in contenders
    }


def ray(around: dict[str, str], nodes: int, source: Path) -> float:
    return inside(["ray", str(source), str(nodes)], around)


def make_photos(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    whole = [skimage.data.chelsea(), skimage.data.coffee(), skimage.data.rocket()]
    for number in range(count):
        source = Image.fromarray(whole[number % len(whole)])
        side = int(rng.integers(240, min(source.size)))
        left, top = (int(rng.integers(0, each - side + 1)) for each in source.size)
        photo = source.crop((left, top, left + side, top + side)).resize((400, 400))
        photo.save(folder / f"{number:06d}.jpg", quality=90)


def batch(source: Path, around: dict[str, str], *more: str) -> float:
    """Seconds of the whole process."""
    with tempfile.TemporaryDirectory() as output:
        begun = time.perf_counter()
        subprocess.run(  # noqa: S603
            [
                sys.executable,
                "-m",
                "service",
                "batch",
                str(source),
                "--output",
                f"{output}/out",
                *more,
            ],
            env=around,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - begun


def job(source: Path, catalog: Path | None) -> float:
    """Seconds from the request to the job's end."""
    import requests

    models = [] if catalog is None else ["--models", str(catalog)]
    with tempfile.TemporaryDirectory() as name:
        archive = Path(name) / "photos.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            for file in sorted(source.iterdir()):
                packed.write(file, file.name)
        os.environ["GRADCAM_JOBS"] = f"{name}/jobs"
        try:
            with started([sys.executable, "-m", "service", "serve", *models, "--port"]) as (
                port,
                _,
            ):
                begun = time.perf_counter()
                answer = requests.post(
                    f"http://127.0.0.1:{port}/v1/jobs?output=overlay",
                    data=archive.read_bytes(),
                    headers={"Content-Type": "application/zip"},
                    timeout=60,
                )
                answer.raise_for_status()
                where = f"http://127.0.0.1:{port}{answer.headers['Location']}"
                while requests.get(where, timeout=60).json()["state"] != "done":
                    time.sleep(0.05)
                return time.perf_counter() - begun
        finally:
            del os.environ["GRADCAM_JOBS"]


def measure_memory(count: int, folder: Path) -> dict[str, float]:
    """The most memory of the folder command, its first second not counted."""
    photos = folder / "photos"
    make_photos(photos, 50)
    (folder / "models.toml").write_text(TINY)
    for number in range(50, count):
        os.link(photos / f"{number % 50:06d}.jpg", photos / f"{number:06d}.jpg")
    most = 0.0
    command = [sys.executable, "-m", "service", "batch", str(photos), "--output"]
    around = {**os.environ, "PYTHONPATH": str(ROOT), "GRADCAM_MODELS": str(folder / "models.toml")}
    begun = time.perf_counter()
    process = subprocess.Popen(  # noqa: S603
        [*command, str(folder / "out"), "--pictures", "none"], env=around, stderr=subprocess.DEVNULL
    )
    seen = psutil.Process(process.pid)
    while process.poll() is None:
        with suppress(psutil.Error):
            most = max(most, seen.memory_info().rss / 1e6)
        time.sleep(0.1)
    return {"photos": count, "megabytes": most, "rate": count / (time.perf_counter() - begun)}


# In a process of its own


def inside(words: list[str], around: dict[str, str]) -> float:
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "bench.batch", "--inside", *words],
        env=around,
        check=True,
        capture_output=True,
        text=True,
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def engine(source: Path) -> float:
    """Seconds from the first photo to the last overlay, the model loaded."""
    from service.core.allocator import keep_memory
    from service.core.concurrency import explain_many
    from service.features.batch.inputs import open_inputs
    from service.local.session import local_session
    from service.pipeline.instances import Instance
    from service.pipeline.parameters import Parameters
    from service.settings import Settings

    async def explain() -> float:
        settings = Settings.read(os.environ, cache_bytes=0)
        with open_inputs(str(source)) as inputs:
            images = {name: inputs.read(name) for name in inputs.ids}
        async with local_session(settings, None, spread=True) as session:

            async def work(name: str) -> bytes:
                instance = Instance(0, name, images[name], "", Parameters())
                async with session.pipeline.explain(session.replicas, instance) as result:
                    return await result.as_picture("image/jpeg")

            begun = time.perf_counter()
            async with explain_many(images, work, at_once=session.at_once) as results:
                async for _ in results:
                    pass
            return time.perf_counter() - begun

    keep_memory()
    return asyncio.run(explain())


def loop(source: Path, model: str) -> float:
    """The same of pytorch-grad-cam, as its README has it."""
    import cv2
    import timm
    import torch
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.image import show_cam_on_image
    from torchvision import models, transforms

    if model == "resnet50":
        module: Any = models.resnet50(weights=None).eval()
        target = module.layer4[-1]
        mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    else:
        module = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
        target = module.conv_head
        mean, std = [0.5] * 3, [0.5] * 3
    resize = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)])
    normalise = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])
    with (
        tempfile.TemporaryDirectory() as output,
        GradCAM(model=module, target_layers=[target]) as cam,
    ):
        begun = time.perf_counter()
        for file in sorted(source.iterdir()):
            photo = resize(Image.open(file).convert("RGB"))
            with torch.enable_grad():
                heatmap = cam(input_tensor=normalise(photo)[None], targets=None)[0]
            overlay = show_cam_on_image(np.asarray(photo, np.float32) / 255, heatmap, use_rgb=True)
            cv2.imwrite(f"{output}/{file.name}", overlay[:, :, ::-1])
        return time.perf_counter() - begun


def on_ray(source: Path, nodes: int) -> float:
    """Seconds of the whole command on a cluster that runs."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    from ray.cluster_utils import Cluster  # reads them

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False}
    )
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=3)
        cluster.wait_for_nodes()
        return batch(source, {**os.environ}, "--ray", cluster.address)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        what, where, *rest = sys.argv[2:]
        roles: dict[str, Callable[..., float]] = {
            "engine": engine,
            "loop": loop,
            "ray": lambda source, nodes: on_ray(source, int(nodes)),
        }
        print(json.dumps(roles[what](Path(where), *rest)))
    else:
        main()
