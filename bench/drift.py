"""Whether a change of a live model's maps is found, and how often one is found where there is none.

    python -m bench.drift [--runs 20] [--only STREAM …] [--write]

Random parts of nine photos, explained by the embedded model with Grad-CAM of the predicted class.
In each run 1,000 of them make the reference, and others make the stream; none is drawn twice. After
every 50 requests the window is compared with the reference.

Streams in which nothing changes, 2,000 requests each unless it says otherwise:

- `ordinary`: drawn as the reference is
- `other mix`: the two most frequent classes make three fifths of the traffic, 800 requests; and
  the same without classes, `other mix, one class`, which shows what the weighting is for
- `repeated`: half of the requests are of five photos
- `frames`: each photo comes ten times in a row, a few pixels apart, 1,000 requests

Streams that change after 500 requests of the ordinary kind, and then go on for 500:

- `logo in a corner`: the face of a cat is pasted into each photo
- `centre covered`: a grey square lies on each photo
- `blur`: each photo is blurred, by a Gaussian of 2 pixels
- `slow blur`: each photo is blurred more than the one before it, from nothing to 2 pixels
- `colour cast`: red is multiplied by 1.2 and blue by 0.7; `blue for red`: they are exchanged
- `brighter by 70`: of 255
- `dirt on the lens`: five grey smears at fixed places

And: the cost of one map, of a sampled prediction and of one comparison, and how often p alone, at a
level of 0.01, is wrong about random numbers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import timeit
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from bench.drift_photos import BATCH, CHANGES, SIDE, Explained, explained, load_model
from bench.record import record
from cam import ClassTarget, Explanation, Question, explain_batch
from cam.drift.comparison import compare
from cam.drift.map_statistics import STATISTICS, MapStatistics, statistics_of
from cam.drift.origin import Origin
from cam.drift.reference import Reference, reference_of
from cam.drift.window import Window
from service.backend.outcome import Prediction, ServedAnswer
from service.backend.work import Explain
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.features.drift.watch import DriftWatch
from service.loading.served_model import ServedModel
from service.models.preprocessing import ModelInput

ORIGIN = Origin("efficientnet-lite0", "", "gradcam", "", "crop")
EVERY = 50
"""Number of requests between two comparisons."""
BEFORE, AFTER = 500, 500
"""Numbers of requests before and after a change."""
FRAMES = 10
LEVEL = 0.01
REPEATS, AT_ONCE = 20, 5
"""How often each kind of answer is measured, and the number of answers each time."""
Pools = dict[str, list[Explained]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--ordinary", type=int, default=4000)
    parser.add_argument("--changed", type=int, default=700)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only-cost", action="store_true", help="print what watching costs")
    parser.add_argument("--only", nargs="*", choices=tuple(STREAMS), help="streams to watch")
    asked = parser.parse_args()
    names = asked.only or list(STREAMS)
    served = load_model()
    if asked.only_cost:
        print(json.dumps({**cost(served), **asyncio.run(cost_of_samples(served))}, indent=2))
        return
    pools: Pools = {
        "ordinary": explained(served, asked.ordinary, seed=0),
        **{
            name: explained(served, asked.changed, change, seed=2)
            for name, change in CHANGES.items()
            if name in names
        },
    }
    if "frames" in names:
        pools["frames"] = explained(served, 150 * FRAMES, seed=1, frames=FRAMES)
    rows = {name: watched(pools, name, asked.runs) for name in names}
    table = Table("stream", "runs", "found", "requests, median", "worst", "what, as a rule")
    for name, row in rows.items():
        told = [str(row.get(key, "")) for key in ("median", "worst", "rule")]
        table.add_row(name, str(asked.runs), str(row["found"]), *told)
    Console().print(table)
    if asked.only:
        return
    costs = {
        **cost(served),
        **asyncio.run(cost_of_samples(served)),
        **cost_of_comparison(pools["ordinary"]),
    }
    chance = calibrated()
    Console().print(costs, chance)
    if asked.write:
        record("drift", runs=asked.runs, streams=rows, cost=costs, chance=chance)


# Streams


def ordinary(pools: Pools, rest: list[Explained], rng: np.random.Generator) -> list[Explained]:
    return rest[:2000]


def other_mix(pools: Pools, rest: list[Explained], rng: np.random.Generator) -> list[Explained]:
    indices, counts = np.unique([each.index for each in rest], return_counts=True)
    often = set(indices[np.argsort(-counts)[:2]].tolist())
    many = [each for each in rest if each.index in often][:480]
    others = [each for each in rest if each.index not in often][:320]
    return shuffled(many + others, rng)


def one_class(pools: Pools, rest: list[Explained], rng: np.random.Generator) -> list[Explained]:
    return [replace(each, index=0) for each in other_mix(pools, rest, rng)]


def repeated(pools: Pools, rest: list[Explained], rng: np.random.Generator) -> list[Explained]:
    return shuffled(rest[5:1005] + rest[:5] * 200, rng)


def frames(pools: Pools, rest: list[Explained], rng: np.random.Generator) -> list[Explained]:
    whole = pools["frames"]
    videos = [whole[start : start + FRAMES] for start in range(0, len(whole), FRAMES)]
    return [each for video in shuffled(videos, rng)[:100] for each in video]


STREAMS = {
    "ordinary": ordinary,
    "other mix": other_mix,
    "other mix, one class": one_class,
    "repeated": repeated,
    "frames": frames,
    **dict.fromkeys(CHANGES),
}
"""Name → what draws the requests; None for a stream that changes."""


def shuffled(values: Sequence[Any], rng: np.random.Generator) -> list[Any]:
    return [values[each] for each in rng.permutation(len(values))]


def watched(pools: Pools, name: str, runs: int, size: int = 1000) -> dict[str, Any]:
    """Watch a stream in several runs: in how many something was found, and after how many requests,
    counted from the change if there is one."""
    found, said, unknown = [], [], []
    for run in range(runs):
        rng = np.random.default_rng(run)
        drawn = shuffled(pools["ordinary"], rng)
        draw, good, rest = STREAMS[name], drawn[:size], drawn[size:]
        if name == "other mix, one class":
            good = [replace(each, index=0) for each in good]
        if draw is None:
            changed = pools[name] if name == "slow blur" else shuffled(pools[name], rng)
            stream, start = rest[:BEFORE] + changed[:AFTER], BEFORE
        else:
            stream, start = draw(pools, rest, rng), 0
        requests, sentences, left_out = first_found(reference(good), stream)
        unknown.append(left_out)
        if requests is not None:
            found.append(requests - start)
            said.append(sentences[0])
    row: dict[str, Any] = {"found": len(found), "unknown": round(max(unknown), 3)}
    if found:
        rule = statistics.mode(said)
        row |= {"median": statistics.median(found), "worst": max(found), "rule": rule}
    return row


def reference(good: Iterable[Explained]) -> Reference:
    return reference_of(((each.index, each.statistics) for each in good), ORIGIN)


def first_found(
    good: Reference, stream: Sequence[Explained]
) -> tuple[int | None, list[str], float]:
    """Return after how many requests something has moved, None if never; the sentences; and the
    largest share of maps that were not compared."""
    window, unknown = Window(), 0.0
    for number, each in enumerate(stream, 1):
        window.record(each.index, each.statistics)
        if number % EVERY == 0:
            result = compare(good, window.snapshot())
            unknown = max(unknown, result.unknown or 0.0)
            if result.moved:
                return number, [shift.sentence() for shift in result.moved], unknown
    return None, [], unknown


# Costs, and chance


def cost(served: ServedModel) -> dict[str, float]:
    """Measure the statistics of one map and recording them, beside the explanation itself, in
    seconds of the CPU, which other programs on the machine change less than the time of day."""
    rng = np.random.default_rng(0)
    values, window = rng.random((7, 7), np.float32), Window()
    pixels = rng.integers(0, 256, (BATCH, SIDE, SIDE, 3), np.uint8)

    def watch() -> None:
        window.record(3, statistics_of(values, 0.5, pixels[0]))

    watching = min(timeit.repeat(watch, timer=process_time, number=2000, repeat=9)) / 2000
    images = served.normalise(pixels).contiguous()
    question = Question((ClassTarget(),), "gradcam", (served.default,))

    def explain() -> None:
        list(explain_batch(served.module, images, [question] * BATCH))

    # As the service does it, with its metrics: set PROMETHEUS_MULTIPROC_DIR to an empty folder to
    # have them in files, as they are where there are several processes.
    served_watch = DriftWatch(served, Metrics())
    found = Explanation(ClassTarget(3), 1.0, 0.5, "gradcam", served.default, values)
    said = ServedAnswer(Prediction(), (found,))

    def note() -> None:
        served_watch.note([served_watch.question], said, pixels[0])

    noting = min(timeit.repeat(note, timer=process_time, number=2000, repeat=9)) / 2000
    explain()
    explaining = min(timeit.repeat(explain, timer=process_time, number=1, repeat=9)) / BATCH
    return {
        "map_us": round(watching * 1e6, 1),
        "explanation_ms": round(explaining * 1e3, 2),
        "share": round(watching / explaining, 5),
        "with_metrics_us": round(noting * 1e6, 1),
        "with_metrics_share": round(noting / explaining, 5),
        "threads": torch.get_num_threads(),
    }


async def cost_of_samples(served: ServedModel) -> dict[str, float]:
    """Measure what the engine does for one photo, in milliseconds of the CPU on all threads: a
    prediction, an explanation, the explanation of a sampled prediction, and for comparison one of
    a job, whose passes have four images so that it is repeatable."""
    question = Question((ClassTarget(),), "gradcam", (served.default,))
    rng = np.random.default_rng(0)
    seen = ModelInput.of(rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8))
    kinds = {
        "predict_ms": Explain(seen),
        "explain_ms": Explain(seen, (question,)),
        "sampled_ms": Explain(seen, (question,), "background", watched=True),
        "job_ms": Explain(seen, (question,), "background"),
    }
    found: dict[str, list[float]] = {name: [] for name in kinds}
    async with Engine(served, max_queue=64, metrics=Metrics()) as engine:
        await engine.warm()
        for _ in range(REPEATS):  # in turn, so that what slows the machine slows all alike
            for name, work in kinds.items():
                started = process_time()
                for _ in range(AT_ONCE):
                    await engine.ask(work)
                found[name].append((process_time() - started) / AT_ONCE)
    return {name: round(min(each) * 1e3, 2) for name, each in found.items()}


def cost_of_comparison(pool: Sequence[Explained]) -> dict[str, float]:
    """Measure a comparison with a full window: half of the photos, repeated with a small change."""
    rng = np.random.default_rng(0)
    window = Window()
    for number in range(window.size * window.classes):
        each = pool[number % len(pool)]
        window.record(each.index, changed(each.statistics, rng))
    good, snapshot = reference(pool[:1000]), window.snapshot()
    comparing = min(
        timeit.repeat(lambda: compare(good, snapshot), timer=process_time, number=1, repeat=9)
    )
    taking = min(timeit.repeat(window.snapshot, timer=process_time, number=1, repeat=9))
    series = len(snapshot.by_class) + 1
    return {
        "series": series,
        "comparison_ms": round(comparing * 1e3, 2),
        "snapshot_ms": round(taking * 1e3, 2),
    }


def changed(each: MapStatistics | None, rng: np.random.Generator) -> MapStatistics | None:
    return each and replace(each, entropy=float(rng.random()))


def calibrated(windows: int = 1000) -> dict[str, float]:
    """Compare windows of independent random numbers with references of them: how often the least
    corrected p is below `LEVEL`, in a window of 500 requests, and in any of the ten windows that
    end within 500 requests. A reference of 1,000 is drawn for each."""
    rng = np.random.default_rng(0)
    once = often = great = 0
    for _ in range(windows):
        good = reference(random_maps(rng, 1000))
        window, below = Window(), []
        stream = random_maps(rng, 1000)
        for number, each in enumerate(stream, 1):
            window.record(each.index, each.statistics)
            if number > window.size and number % EVERY == 0:
                shifts = compare(good, window.snapshot()).shifts
                below.append(min(shift.p for shift in shifts) < LEVEL)
                great += any(shift.p < LEVEL and shift.psi > 0.25 for shift in shifts)
        once += below[-1]
        often += any(below)
    return {
        "level": LEVEL,
        "one_window": once / windows,
        "ten_windows": often / windows,
        "with_psi": great / windows,
    }


def random_maps(rng: np.random.Generator, count: int) -> list[Explained]:
    """Draw maps of no class whose statistics are independent of each other."""
    return [
        Explained(0, MapStatistics(*each)) for each in rng.random((count, len(STATISTICS))).tolist()
    ]


if __name__ == "__main__":
    main()
