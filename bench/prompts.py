"""What the map of a prompt costs beside the image encoder's forward pass, of image–text models with
random weights: one after the other, one image at a time and in batches.

    OMP_NUM_THREADS=2 python -m bench.prompts [--batch 1 8] [--rounds 20]

Each round makes every measurement once, in a random order; the medians are compared.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch
import transformers
from torch import Tensor

from cam import ClassTarget, PromptClassifier, Question, explain_batch
from cam.layers import default_layer, survey
from cam.outputs.reading import Reading
from cam.targets import Target
from tests.zoo.image_text import TEXT, tokenizer

PROMPTS = ("a cat", "a dog", "the remote control")


def model_of(kind: str) -> PromptClassifier:
    """The image encoder of CLIP ViT-B/16 or SigLIP-B/16, and a small text encoder."""
    torch.manual_seed(0)
    size = {"image_size": 224, "patch_size": 16}
    if kind == "Siglip":
        vision = transformers.SiglipVisionConfig(**size).to_dict()
        config = transformers.SiglipConfig(text_config=dict(TEXT), vision_config=vision)
        config.text_config.projection_size = config.vision_config.hidden_size
    else:
        vision = transformers.CLIPVisionConfig(
            hidden_size=768, intermediate_size=3072, num_attention_heads=12, **size
        ).to_dict()
        config = transformers.CLIPConfig(text_config=dict(TEXT), vision_config=vision)
    model = getattr(transformers, f"{kind}Model")(config).eval().requires_grad_(False)
    return PromptClassifier(model, tokenizer(), PROMPTS)


def seconds(work: Callable[[], object]) -> float:
    begun = perf_counter()
    work()
    return perf_counter() - begun


def measured(kind: str, batch: int, rounds: int) -> str:
    model = model_of(kind)
    images = torch.randn(batch, 3, 224, 224)
    reading = Reading(None, model.activation)
    layer = default_layer(survey(model, images[:1], reading))

    def passed() -> None:
        with torch.inference_mode():
            model(images)

    def explained(targets: tuple[Target, ...], images: Tensor = images) -> None:
        asked = [Question(targets, "gradcam", (layer,))] * batch
        list(explain_batch(model, images, asked, reading=reading))

    works: dict[str, Callable[[], object]] = {
        "a prompt": partial(explained, (ClassTarget(0),)),
        "a text": partial(explained, (model.text_target("a photo of a dog"),)),
        "three prompts": partial(explained, tuple(map(ClassTarget, range(3)))),
    }
    times: dict[str, list[float]] = {name: [] for name in ("pass", *works)}
    for turn in range(rounds + 2):
        order = [("pass", passed), *works.items()]
        random.shuffle(order)
        for name, work in order:
            spent = seconds(work)
            if turn > 1:
                times[name].append(spent)
    plain = median(times.pop("pass"))
    told = ", ".join(f"{name} {median(spent) / plain:.2f}" for name, spent in times.items())
    return f"{kind}, {batch} images: a pass {plain * 1000:.0f} ms; in passes: {told}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["CLIP", "Siglip"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=20)
    wanted = parser.parse_args()
    for kind in wanted.models:
        for batch in wanted.batch:
            print(measured(kind, batch, wanted.rounds), flush=True)


if __name__ == "__main__":
    main()
