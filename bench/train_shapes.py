"""Train the embedded vision–language model `shapes`, a LLaVA that knows coloured shapes.

    python -m bench.train_shapes --output service/sources/embedded/shapes
    python -m bench.train_shapes --measure service/sources/embedded/shapes

It is for trying and testing: where each of its words is to be seen is known, because the pictures
are drawn (tests/scenes.py). What large models bring from their training, it is taught: besides the
answers, it learns to say at each image token what lies there, inside a thing rather its colour, at
its edge rather its shape; and by pictures that are blurred to one colour, what is likely without a
picture.

On two cores that do nothing else, the embedded model took 24 minutes. Ten are
enough (`--batch 26`: 595 s) for 98 % of right answers, and words that point as well.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import cv2
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy

from cam import AnswerOptions, VisionLanguageModel, explain_answer
from cam.answers.methods import METHODS
from cam.drawing.placement import resize
from tests.scenes import COLOURS, DRAWN, SHAPES, Scene, ask, make_scene

SIDE: Final = 48
PATCH: Final = 4
TOKENS: Final = (SIDE // PATCH) ** 2
WORDS: Final = (
    *("<pad>", "<eos>", "<unk>", "<image>", "?", ":", "question", "answer"),
    *("a", "the", "in", "is", "it", "of", "on", "there", "what", "who", "yes", "no"),
    *("left", "above", "colour", "picture", "table", "weather", "sunny", "painted", "anna"),
    *COLOURS,
    *SHAPES,
)
THINGS: Final = 0.5
"""Weight of the loss of image tokens on a thing."""
BLURRED: Final = 0.12
"""Share of pictures of which only the mean colour is left."""
INSIDE: Final = 0.95
"""Least share of a token that a thing covers inside."""
GROUND: Final = 0.1
"""Weight of the loss of the other image tokens."""
SEARCHED: Final = 0.2
"""Share of the scenes whose words are explained by EAGLE, which takes 470 passes for each."""
TEMPLATE: Final = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}answer : {% else %}question : {% endif %}"
    "{% if message.content is string %}{{ message.content }} {% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }} {% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}answer :{% endif %}"
)
VISION: Final = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": SIDE,
    "patch_size": PATCH,
    "vision_use_head": False,
}
LANGUAGE: Final = {
    "vocab_size": len(WORDS),
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}


def make_processor() -> Any:
    words = {word: index for index, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.normalizer = normalizers.Lowercase()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<image>"],
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=256,
    )
    images = transformers.SiglipImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, resample=3, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return transformers.LlavaProcessor(
        images,
        tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="full",
        chat_template=TEMPLATE,
    )


def make_model() -> Any:
    config = transformers.LlavaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**LANGUAGE),
        image_token_index=WORDS.index("<image>"),
        image_seq_length=TOKENS,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
    return transformers.LlavaForConditionalGeneration(config)


def pixels_of(picture: np.ndarray) -> np.ndarray:
    small = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return (small.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)


NOTHING: Final = np.eye(len(WORDS), dtype=np.float32)[[WORDS.index("picture")] * TOKENS]
"""The words at the image tokens of a picture of one colour."""


def named_places(scene: Scene) -> np.ndarray:
    """The probabilities of words at each image token: the colour and the shape of the thing that
    covers most of the token; "picture" where none covers a quarter of it."""
    side = SIDE // PATCH
    covered = [
        cv2.resize(thing.mask(96).astype(np.float32), (side, side), interpolation=cv2.INTER_AREA)
        for thing in scene.things
    ]
    said = np.zeros((side, side, len(WORDS)), np.float32)
    said[..., WORDS.index("picture")] = 1
    for thing, share, other in zip(scene.things, covered, reversed(covered), strict=True):
        mine = (share >= 0.25) & (share >= other)
        said[mine] = 0
        colour = np.where(share >= INSIDE, 0.7, 0.3)
        said[mine, WORDS.index(thing.colour)] = colour[mine]
        said[mine, WORDS.index(thing.shape)] = 1 - colour[mine]
    return said.reshape(TOKENS, -1)


def batch(rng: np.random.Generator, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Pictures, the tokens of questions and answers, which of these are learned, and the words at
    the image tokens."""
    index = {word: number for number, word in enumerate(WORDS)}
    pictures, rows, learned, places = [], [], [], []
    for _ in range(size):
        scene = make_scene(rng)
        noise = rng.normal(0, rng.uniform(0, 0.05), (3, SIDE, SIDE)).astype(np.float32)
        drawn, blurred = pixels_of(scene.draw(96)), rng.random() < BLURRED
        if blurred:
            drawn[:] = drawn.mean((1, 2), keepdims=True)
        pictures.append(drawn + noise)
        places.append(NOTHING if blurred else named_places(scene))
        asked = ask(scene, rng)
        question = f"question : {asked.question} answer :".split()
        # As the chat template writes it: the picture stands behind "question :".
        words = [*question[:2], *["<image>"] * TOKENS, *question[2:]]
        answer = [*asked.answer.split(), "<eos>"]
        rows.append([index[word] for word in (*words, *answer)])
        learned.append([False] * len(words) + [True] * len(answer))
    longest = max(map(len, rows))
    tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    learn = torch.tensor([row + [False] * (longest - len(row)) for row in learned])
    return (
        torch.from_numpy(np.stack(pictures)),
        tokens,
        learn,
        torch.from_numpy(np.stack(places)),
    )


def train(model: Any, steps: int, size: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0, weight_decay=0.05, betas=(0.9, 0.98))
    started = perf_counter()
    recent: list[tuple[float, float]] = []
    for step in range(1, steps + 1):
        rate = 2e-3 * min(1, step / 200) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimiser.param_groups:
            group["lr"] = rate
        pictures, tokens, learn, places = batch(rng, size)
        logits = model(input_ids=tokens, pixel_values=pictures).logits
        answers = cross_entropy(logits[:, :-1][learn[:, 1:]], tokens[:, 1:][learn[:, 1:]])
        images = logits[:, 2 : 2 + TOKENS]  # behind "question :"
        on_thing = places[..., WORDS.index("picture")] == 0
        there = cross_entropy(images[on_thing], places[on_thing])
        elsewhere = cross_entropy(images[~on_thing], places[~on_thing])
        loss = answers + THINGS * there + GROUND * elsewhere
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        recent.append((float(answers.detach()), float(there.detach())))
        if step % 100 == 0:
            seconds = perf_counter() - started
            means = ", ".join(f"{value:.4f}" for value in np.mean(recent[-100:], 0))
            print(f"{step} steps, {seconds:.0f} s: answers, things {means}", flush=True)


def figures(
    model: VisionLanguageModel,
    scenes: int,
    seed: int,
    methods: Iterable[str] = tuple(METHODS),
) -> dict[str, float]:
    """How good the answers and the maps of their words are on scenes that were not learned, of the
    kinds of questions that were.

    `right`: share of answers that are right, word for word. `pointing METHOD`: share of nouns whose
    hottest pixel lies on their thing, or 15 pixels of 224 beside it, as in the pointing game (Zhang
    et al., ECCV 2016). `energy METHOD`: mean share of a noun's heat that lies on its thing (the
    energy-based pointing game, Wang et al., CVPR Workshops 2020). `precision`, `recall`: of
    `from_language` as the sign of a word that no picture tells, among these and the words that only
    the picture tells.
    """
    rng = np.random.default_rng(seed)
    right: list[bool] = []
    hits: dict[str, list[bool]] = {name: [] for name in methods}
    shares: dict[str, list[float]] = {name: [] for name in methods}
    seen: list[bool] = []
    planted: list[bool] = []
    for number in range(scenes):
        scene = make_scene(rng)
        asked, photo = ask(scene, rng, learned=True), scene.draw()
        right.append(explain_answer(model, photo, asked.question).text == asked.answer)
        given = AnswerOptions(asked.answer, method="tam")
        words = explain_answer(model, photo, asked.question, given).words
        flags = [bool(word.from_language) for word in words]
        seen += [flags[word] for word in asked.seen]
        planted += [flags[word] for word in asked.planted]
        for method, found in hits.items():
            given = replace(given, method=method, evidence=False)
            # A search for each word: of fewer words, and of those that are named by their text.
            searched = METHODS[method].of == "word"
            if searched and number >= scenes * SEARCHED:
                continue
            answer = None if searched else explain_answer(model, photo, asked.question, given)
            for word, thing in asked.thing.items():
                if searched:
                    given = replace(given, word=words[word].text)
                    answer = explain_answer(model, photo, asked.question, given)
                assert answer is not None
                heat = answer.words[word].map
                if heat is None:  # the text was said before
                    continue
                mask, on_photo = scene.things[thing].mask(DRAWN), resize(heat, DRAWN, DRAWN)
                place = np.unravel_index(on_photo.argmax(), mask.shape)
                reach = np.hypot(*(np.argwhere(mask) - place).T)
                found.append(bool(heat.any()) and reach.min() <= DRAWN * 15 / 224)
                shares[method].append(float(on_photo[mask].sum() / max(on_photo.sum(), 1e-12)))
    means = {f"pointing {name}": float(np.mean(found)) for name, found in hits.items()}
    means |= {f"energy {name}": float(np.mean(found)) for name, found in shares.items()}
    flagged = sum(seen) + sum(planted)
    return {
        "right": float(np.mean(right)),
        **means,
        "precision": sum(planted) / max(flagged, 1),
        "recall": float(np.mean(planted)),
    }


def loaded(folder: Path) -> VisionLanguageModel:
    model = transformers.LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    return VisionLanguageModel(model, transformers.AutoProcessor.from_pretrained(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path)
    parser.add_argument("--measure", type=Path)
    parser.add_argument("--scenes", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.measure:
        for name, value in figures(loaded(given.measure), given.scenes, seed=1).items():
            print(f"{name}: {value:.3f}")
        return
    torch.manual_seed(given.seed)
    model = make_model()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    train(model.train(), given.steps, given.batch, given.seed)
    model.half().save_pretrained(given.output)
    make_processor().save_pretrained(given.output)


if __name__ == "__main__":
    main()
