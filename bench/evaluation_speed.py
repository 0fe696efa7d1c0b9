"""How long scores take beside other tools. The command is `python -m bench.evaluation speed`.

Two tasks, each of the same photos of 224 × 224 and the same maps, in images a second:

- insertion and deletion: 30 steps of each, by cam, Quantus and torchcam
- ROAD: 9 percentages of both orders, by cam, Quantus and pytorch-grad-cam

In each round every contender takes its turn once, in another order than in the round before; the
figures are medians over the rounds. All have as many threads, and the same module, whose memory
layout is chosen when it is loaded. cam takes one photo after another, in forward passes of as many
images as in the service, and scores no baselines. The peers take all photos in one batch.
"cam, OpenVINO" computes in float32, as the service does where OpenVINO is installed. Quantus has no
insertion, and only one order of ROAD. It is asked twice for each, as `bench/evaluation_peers.py`
says.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench import evaluation_peers as peers
from bench.evaluation_scenes import MODELS as SCENES
from bench.evaluation_scenes import Map, loaded, photos, smooth_map
from bench.record import machine
from cam import ClassTarget, Question, evaluate
from cam.evaluation.candidate import Candidate
from cam.evaluation.evaluate import evaluate_in_steps
from cam.evaluation.metrics import PERCENTAGES, MetricOptions, Scores, step_of
from cam.runtimes.openvino import OpenVinoPath, is_installed
from service.core.threads import WAITING, one_each
from service.engine.engine import BACKGROUND_GROUP
from service.loading.served_model import ServedModel

MODELS = SCENES[:2]
STEPS = 30
TASKS = {"insertion and deletion": ("insertion", "deletion"), "ROAD": ("road",)}
"""Task → cam's metrics."""
OPTIONS = MetricOptions(steps=STEPS, percentages=PERCENTAGES, baselines=())
CHUNK = BACKGROUND_GROUP
"""Images in one forward pass, as in the service. On a CPU, larger passes take longer per image."""
OURS, COMPILED = "cam, PyTorch", "cam, OpenVINO"
Run = Callable[[int], Any]
"""Scores as many of the photos; cam's returns the values."""


def run(
    names: Sequence[str], count: int, rounds: int, *, threads: int | None, write: Path | None
) -> None:
    """Measure, show the tables, and write the results."""
    if threads:
        torch.set_num_threads(threads)
    rows = []
    with one_each():  # of the rest, no contender shares its cores with threads that spin
        for name in names:
            for found in compare(name, count, rounds):
                rows.append(found)
                show(found)
    if write:
        packages = ["quantus", *(["openvino"] if is_installed() else [])]
        told = {**machine(), **{each: version(each) for each in packages}}
        write.write_text(
            json.dumps({"machine": told, "waiting": WAITING, "rows": rows}, indent=1) + "\n"
        )


def compare(name: str, count: int, rounds: int) -> list[dict[str, Any]]:
    """Measure one model at both tasks."""
    served = loaded(name)
    images = photos(served, count)
    height, width = images.shape[-2:]
    maps = np.stack([smooth_map(height, width, seed=number) for number in range(count)])
    with torch.no_grad():
        classes = served.module(images).argmax(1).tolist()
    path = compiled(served, images) if is_installed() else None
    return [
        {
            "model": name,
            "task": task,
            "channels_last": served.channels_last,
            **measured(contenders, count, rounds),
        }
        for task in TASKS
        for contenders in [contenders_of(task, served, path, images, classes, maps)]
    ]


def compiled(served: ServedModel, images: Tensor) -> OpenVinoPath:
    path = OpenVinoPath(
        served.module,
        served.default,
        dtype=torch.float32,
        sizes=[1],
        head=served.head,
        reading=served.reading,
    )
    path.settle(images[:1])
    return path


def contenders_of(
    task: str,
    served: ServedModel,
    path: OpenVinoPath | None,
    images: Tensor,
    classes: list[int],
    maps: Map,
) -> dict[str, Run]:
    """Return what does the task, by name."""
    model, metrics = served.module, TASKS[task]

    def eager(count: int) -> list[Scores]:
        return [
            evaluate(model, *pair, target=index, metrics=metrics, options=OPTIONS, chunk=CHUNK)
            for *pair, index in zip(images[:count], maps, classes, strict=False)
        ]

    found: dict[str, Run] = {OURS: eager}
    if path:
        found[COMPILED] = partial(by_path, served, path, metrics, images, classes, maps)
    step = step_of(OPTIONS, maps[0].size)

    def quantus_curves(count: int) -> None:
        for insert in (True, False):
            peers.quantus_curves(
                model, images[:count], classes[:count], maps[:count], step=step, insert=insert
            )

    def torchcam_areas(count: int) -> None:
        peers.torchcam_areas(model, images[:count], classes[:count], maps[:count], steps=STEPS)

    def quantus_roads(count: int) -> None:
        for values in (maps[:count], -maps[:count]):
            peers.quantus_road(
                model, images[:count], classes[:count], values, percentages=PERCENTAGES
            )

    def grad_cam_roads(count: int) -> None:
        peers.grad_cam_roads(model, images[:count], classes[:count], maps[:count])

    if task == "ROAD":
        return {**found, "quantus": quantus_roads, "grad-cam": grad_cam_roads}
    return {**found, "quantus": quantus_curves, "torchcam": torchcam_areas}


def by_path(
    served: ServedModel,
    path: OpenVinoPath,
    metrics: Sequence[str],
    images: Tensor,
    classes: list[int],
    maps: Map,
    count: int,
) -> list[Scores]:
    """Score maps as the service's engine does, which gives a compiled path all forward passes."""
    found = []
    for image, values, index in zip(images[:count], maps, classes, strict=False):
        steps = evaluate_in_steps(
            served.module,
            image,
            Question((ClassTarget(index),), "gradcam", ()),
            [Candidate(values)],
            metrics,
            OPTIONS,
            answer=lambda some, questions: path.explain(some.contiguous(), questions),
            chunk=CHUNK,
            reading=served.reading,
        )
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                (scores,) = stop.value
                found.append(scores)
                break
    return found


def measured(contenders: dict[str, Run], count: int, rounds: int) -> dict[str, Any]:
    """Let the contenders take turns, and return the median and the fastest seconds of each, and the
    median of the CPU's seconds, which other programs on the machine hardly change."""
    for each in contenders.values():
        each(1)  # warms up
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    computed: dict[str, list[float]] = {name: [] for name in contenders}
    said: dict[str, Any] = {}
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            started, before = perf_counter(), process_time()
            said[name] = contenders[name](count)
            seconds[name].append(perf_counter() - started)
            computed[name].append(process_time() - before)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "photos": count,
        "rounds": rounds,
        "contenders": {
            name: {
                "median_s": round(medians[name], 3),
                "fastest_s": round(min(seconds[name]), 3),
                "median_cpu_s": round(statistics.median(computed[name]), 3),
                "images_per_s": round(count / medians[name], 4),
                "of_pytorch": round(medians[OURS] / medians[name], 3),
            }
            for name in names
        },
        "difference": difference(said[OURS], said[COMPILED]) if COMPILED in said else None,
    }


def difference(one: Sequence[Scores], other: Sequence[Scores]) -> float:
    """Return the greatest difference between cam's own scores."""
    return max(
        abs((scores[name].value or 0.0) - (others[name].value or 0.0))
        for scores, others in zip(one, other, strict=True)
        for name in scores
    )


def show(found: dict[str, Any]) -> None:
    title = f"{found['model']}: {found['task']}, {found['photos']} photos"
    table = Table(
        "", "images/s", f"÷ {OURS}", "median, s", "CPU, s", title=title, title_justify="left"
    )
    for name, values in found["contenders"].items():
        table.add_row(
            name,
            f"{values['images_per_s']:.3f}",
            f"{values['of_pytorch']:.2f}",
            f"{values['median_s']:.2f}",
            f"{values['median_cpu_s']:.2f}",
        )
    Console().print(table)
