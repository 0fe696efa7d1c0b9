"""What the map in an exported file costs: a plain export beside `gradcam export`, by ONNX Runtime
and OpenVINO, one after the other, one image at a time.

    OMP_NUM_THREADS=2 python -m bench.export
    python -m bench.export --models resnet50 --rounds 100 --xai ov_with_xai.xml

Each round runs every file once, in a random order; the medians are compared. With `--xai`, the
file is measured, too: an OpenVINO network with the map of OpenVINO XAI. That tool wants an older
OpenVINO, so it makes the file in an environment of its own (`pip install openvino-xai`), from the
ONNX file that `torch.onnx.export(model, images, "model.onnx", dynamo=False)` writes:

    network = openvino.Core().read_model("model.onnx")
    made = openvino_xai.insert_xai(
        network, task=Task.CLASSIFICATION, explain_method=Method.RECIPROCAM
    )
    openvino.save_model(made, "ov_with_xai.xml", compress_to_fp16=False)
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
import torch

from cam.runtimes.openvino import compiled, converted
from service.features.export.write import INPUT, Form, _quietly, export
from service.loading.served_model import ServedModel, load
from service.models.catalog import EMBEDDED, ModelEntry

MODELS = ("resnet18", "resnet50", "efficientnet-lite0", "mobilenet_v3_large", "convnext_tiny")
Run = Callable[[np.ndarray], object]


def model_of(name: str) -> ServedModel:
    if name == EMBEDDED.name:
        entry = EMBEDDED
    else:
        entry = ModelEntry(name=name, source=f"torchvision:{name}", weights="none")
    return load(entry.model_copy(update={"device": "cpu", "mode": "exact", "max_batch": 1}))


def plain(model: ServedModel, file: Path, form: Form) -> None:
    """Write the model without a map."""
    size = model.preprocessing
    images = torch.randn(2, 3, size.height, size.width)
    if form == "openvino":
        import openvino

        openvino.save_model(converted(model.module, images[:1]), str(file), compress_to_fp16=False)
        return
    sizes = ({0: torch.export.Dim("batch", min=1, max=64)},)
    with _quietly():
        program = torch.onnx.export(
            model.module, (images,), dynamo=True, dynamic_shapes=sizes, input_names=[INPUT],
            verbose=False,
        )  # fmt: skip
    assert program is not None
    program.save(str(file), external_data=False)


def runner(file: Path) -> Run:
    if file.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
        return lambda images: session.run(None, {INPUT: images})
    import openvino

    request = compiled(openvino.Core().read_model(str(file)), torch.float32)
    return lambda images: request.infer([images], share_inputs=True, share_outputs=True)


def medians(runs: dict[str, Run], images: np.ndarray, rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    order, rng = list(runs), random.Random(0)  # noqa: S311 - the order of measurements
    for turn in range(rounds + 3):
        rng.shuffle(order)
        for name in order:
            started = perf_counter()
            runs[name](images)
            if turn >= 3:
                times[name].append(1000 * (perf_counter() - started))
    return {name: median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--xai", type=Path, help="a file of OpenVINO XAI, for one model")
    given = parser.parse_args()
    print("| model | map | runtime | plain, ms | with the map, ms | ratio |")
    print("|---|---|---|---|---|---|")
    for name in given.models:
        model = model_of(name)
        size = model.preprocessing
        images = np.random.default_rng(0).normal(size=(1, 3, size.height, size.width))
        images = images.astype(np.float32)
        with tempfile.TemporaryDirectory() as folder:
            for form, suffix, tool in (
                ("onnx", ".onnx", "ONNX Runtime"),
                ("openvino", ".xml", "OpenVINO"),
            ):
                one, other = Path(folder) / f"plain{suffix}", Path(folder) / f"map{suffix}"
                plain(model, one, form)  # type: ignore[arg-type]
                done = export(model, other, form)  # type: ignore[arg-type]
                runs = {"plain": runner(one), "map": runner(other)}
                if given.xai and form == "openvino":
                    runs["xai"] = runner(given.xai)
                took = medians(runs, images, given.rounds)
                print(
                    f"| {name} | {done.method} | {tool} | {took['plain']:.2f} | {took['map']:.2f} "
                    f"| {took['map'] / took['plain']:.3f} |",
                    flush=True,
                )
                if "xai" in took:
                    print(
                        f"| {name} | OpenVINO XAI's | {tool} | {took['plain']:.2f} "
                        f"| {took['xai']:.2f} | {took['xai'] / took['plain']:.3f} |",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
