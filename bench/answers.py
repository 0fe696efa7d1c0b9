"""What the maps of an answer's words cost beside the same model's own `generate`: the embedded
model, and a LLaVA of a SigLIP-B/16 and a language model of 12 blocks, with random weights.

    OMP_NUM_THREADS=2 python -m bench.answers [--tokens 24] [--rounds 7]

Each round makes every measurement once, in a random order; the medians are compared.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import transformers

from bench.train_shapes import TEMPLATE, loaded, make_processor
from cam import AnswerOptions, VisionLanguageModel, explain_answer
from service.sources.embedded.build import FOLDER

QUESTION = "what is in the picture?"


def embedded() -> VisionLanguageModel:
    """The embedded model."""
    return loaded(FOLDER)


def large() -> VisionLanguageModel:
    """A LLaVA of about 250 million parameters, which never ends its answer."""
    torch.manual_seed(0)
    text = transformers.Qwen2Config(
        vocab_size=32_000,
        hidden_size=896,
        intermediate_size=2432,
        num_hidden_layers=12,
        num_attention_heads=14,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=31_999,
        bos_token_id=None,
    )
    config = transformers.LlavaConfig(
        vision_config=transformers.SiglipVisionConfig(patch_size=16, vision_use_head=False),
        text_config=text,
        image_token_index=3,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    small = make_processor()
    images = transformers.SiglipImageProcessorPil(size={"height": 224, "width": 224})
    processor = transformers.LlavaProcessor(
        images,
        small.tokenizer,
        patch_size=16,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
    )
    model = transformers.LlavaForConditionalGeneration(config).eval()
    return VisionLanguageModel(model, processor)


def measure(model: VisionLanguageModel, tokens: int, rounds: int) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)

    def plain() -> int:
        # As a user of transformers writes it, with the processor's work.
        content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
        text = model.processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        inputs = model.processor(images=[photo], text=[text], return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        made = model.model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
        return int(made.shape[1]) - length

    def ours(**options: Any) -> None:
        explain_answer(model, photo, QUESTION, AnswerOptions(max_tokens=tokens, **options))

    keeping = VisionLanguageModel(model.model, model.processor, photos=2)
    keeping.check()

    def further(**options: Any) -> None:
        explain_answer(keeping, photo, QUESTION, AnswerOptions(max_tokens=tokens, **options))

    kinds: dict[str, Callable[[], object]] = {
        "generate": plain,
        "tam": partial(ours, evidence=False),
        "tam and evidence": ours,
        "tam of a further question about the photo": partial(further, evidence=False),
        "tam and evidence of a further question": further,
        "logits": partial(ours, method="logits", evidence=False),
        "attention": partial(ours, method="attention", evidence=False),
        "gradcam": partial(ours, method="gradcam", evidence=False),
        "legrad": partial(ours, method="legrad", evidence=False),
        "attnlrp": partial(ours, method="attnlrp", evidence=False),
        "chefer": partial(ours, method="chefer", evidence=False),
    }
    for work in kinds.values():
        work()
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name in random.sample(list(kinds), len(kinds)):
            started = perf_counter()
            kinds[name]()
            seconds[name].append(perf_counter() - started)
    base = median(seconds["generate"])
    print(f"generate: {base * 1000:.0f} ms for {plain()} tokens")
    for name, took in seconds.items():
        print(f"  {name}: {median(took) / base:.2f} × generate")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    for make in (embedded, large):
        print(f"{make.__doc__}")
        measure(make(), given.tokens, given.rounds)


if __name__ == "__main__":
    main()
