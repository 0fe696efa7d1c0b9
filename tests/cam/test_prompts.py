"""Prompts are the classes of an image–text model: its own logits and gradients, or a refusal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import transformers
from PIL import Image

from cam import ClassTarget, Output, PromptClassifier, TextTarget, explain
from cam.errors import InvalidPrompt, InvalidTarget, MethodUnsuited, ModelError
from tests.cam.methods.needs import ATTENDING, MATRICES
from tests.quick import quick
from tests.zoo.image_text import (
    KINDS,
    LONGEST,
    OPEN_CLIP,
    image_processor,
    image_text_model,
    open_clip_model,
    tokenizer,
)

PROMPTS = ("a cat", "a dog", "the remote control")
IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
PROBABILISTIC = ("rise", "opticam", "scorecam")
"""Methods that explain the probability of a class, which a text alone has not."""
UNPOOLED = ("chefer", "rollout", "agcam", "gradeclip")
"""Methods that follow no attention that pools the patches."""
LAYER = "vision_model.encoder.layers.2.layer_norm1"


def own_logits(model: Any, texts: list[str], images: torch.Tensor = IMAGES) -> torch.Tensor:
    """What transformers computes, with the padding of the model's training."""
    tokens = tokenizer()(texts, padding="max_length", max_length=LONGEST, return_tensors="pt")
    logits: torch.Tensor = model(pixel_values=images, **tokens).logits_per_image
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_the_logits_are_those_of_the_model(kind: str) -> None:
    model = image_text_model(kind)
    classifier = PromptClassifier(model, tokenizer(), PROMPTS)
    classifier.check(IMAGES[:1])
    torch.testing.assert_close(classifier(IMAGES), own_logits(model, list(PROMPTS)))
    assert classifier.labels == PROMPTS
    assert classifier.activation == ("sigmoid" if kind == "Siglip" else "softmax")


@pytest.mark.parametrize("kind", OPEN_CLIP)
def test_the_logits_are_those_of_the_model_of_open_clip(kind: str) -> None:
    model, words = open_clip_model(kind)
    classifier = PromptClassifier(model, words, PROMPTS)
    classifier.check(IMAGES[:1])
    images = torch.nn.functional.normalize(model.encode_image(IMAGES), dim=-1)
    texts = torch.nn.functional.normalize(model.encode_text(words(list(PROMPTS))), dim=-1)
    expected = model.logit_scale.exp() * images @ texts.T
    if kind == "SigLIP":
        expected = expected + model.logit_bias
    torch.testing.assert_close(classifier(IMAGES), expected)
    assert classifier.activation == ("sigmoid" if kind == "SigLIP" else "softmax")


@pytest.mark.parametrize(
    ("kind", "layer", "refused"),
    [
        ("CLIP", "visual.transformer.resblocks.2.ln_1", {}),
        ("CLIP-mean", "visual.transformer", {"gradeclip": "scores read 16 tokens"}),
        (
            "ResNet",
            "visual.layer4",
            dict.fromkeys(MATRICES, "this model's attention, 5, do not"),
        ),
        ("SigLIP", "visual.trunk.norm", dict.fromkeys(UNPOOLED, "one query for 16")),
        ("CoCa", "visual.attn_pool.ln_k", dict.fromkeys(UNPOOLED, "256 queries and")),
    ],
)
def test_methods_explain_a_model_of_open_clip(
    kind: str, layer: str, refused: dict[str, str]
) -> None:
    classifier = PromptClassifier(*open_clip_model(kind), PROMPTS)
    for method in ("gradcam", "hirescam", "reciprocam", "scorecam", "rise", *ATTENDING):
        if method in refused:
            with pytest.raises(MethodUnsuited, match=refused[method]):
                explain(classifier, IMAGES[:1], target=1, method=method)
            continue
        (found,) = explain(classifier, IMAGES[:1], target=1, method=method, budget=40)
        assert found.map.max() > 0 or (kind, method) == ("ResNet", "reciprocam")
        assert found.layer in (f"encoders.{layer}", "input")


def test_the_tokenizers_of_open_clip_cut_off_nothing(tmp_path: Path) -> None:
    model, words = open_clip_model("CLIP")
    tokenizer().save_pretrained(tmp_path)
    of_hub = open_clip.tokenizer.HFTokenizer(str(tmp_path), context_length=LONGEST)
    marks = {"bos_token": "<eos>", "cls_token": "<eos>"}
    clips = open_clip.tokenizer.HFTokenizer(
        str(tmp_path), context_length=LONGEST, tokenizer_mode="clips", **marks
    )
    for of_model, special in ((words, 2), (of_hub, 1), (clips, 3)):
        most = "cat " * (LONGEST - special)
        PromptClassifier(model, of_model, [most, "dog"])
        with pytest.raises(InvalidPrompt, match="has 17 tokens; the text encoder reads at most 16"):
            PromptClassifier(model, of_model, [most + "cat", "dog"])
    with pytest.raises(InvalidPrompt, match="knows no word of 'xylophone'"):
        PromptClassifier(model, of_hub, ["xylophone", "dog"])
    with pytest.raises(InvalidPrompt, match="knows no word of '&nbsp;'"):
        PromptClassifier(model, words, ["&nbsp;", "dog"])
    with pytest.raises(ModelError, match="is not a tokenizer of open_clip"):
        PromptClassifier(model, tokenizer(), PROMPTS)


def test_several_templates_are_the_mean_of_unit_embeddings() -> None:
    model, templates = image_text_model(), ("a photo of {}", "{} to drink from")
    classifier = PromptClassifier(model, tokenizer(), PROMPTS, templates)
    tokens = tokenizer()(
        ["a photo of a dog", "a dog to drink from"],
        padding="max_length",
        max_length=LONGEST,
        return_tensors="pt",
    )
    texts = model.get_text_features(**tokens).pooler_output
    images = model.get_image_features(pixel_values=IMAGES).pooler_output
    mean = torch.nn.functional.normalize(texts, dim=-1).mean(0)
    cosine = torch.nn.functional.cosine_similarity(images, mean[None])
    torch.testing.assert_close(classifier(IMAGES)[:, 1], model.logit_scale.exp() * cosine)


@pytest.mark.parametrize("minus", [None, 0])
def test_the_map_of_a_prompt_is_grad_cam_of_the_models_own_logit(minus: int | None) -> None:
    model = image_text_model()
    classifier = PromptClassifier(model, tokenizer(), PROMPTS)
    (found,) = explain(classifier, IMAGES[:1], target=ClassTarget(1, minus))
    assert found.layer == f"encoders.{LAYER}"

    kept: list[torch.Tensor] = []
    with torch.enable_grad():
        handle = model.get_submodule(LAYER).register_forward_hook(
            lambda module, given, output: kept.append(output)
        )
        logits = own_logits(model, list(PROMPTS), IMAGES[:1])[0]
        handle.remove()
        score = logits[1] - (0 if minus is None else logits[minus])
        (gradient,) = torch.autograd.grad(score, kept[0])
    tokens, weights = kept[0][0, 1:].detach(), gradient[0, 1:].mean(0)  # without the class token
    expected = (tokens @ weights).relu().reshape(4, 4)
    np.testing.assert_allclose(found.map, expected.numpy(), rtol=1e-4, atol=1e-6)
    assert expected.max() > 0


@pytest.mark.parametrize(("text", "minus"), [("a dog", None), ("a dog", "a cat")])
def test_a_text_has_the_map_that_it_has_as_a_prompt(text: str, minus: str | None) -> None:
    classifier = PromptClassifier(image_text_model("Siglip"), tokenizer(), PROMPTS)
    of_text = classifier.text_target(text, minus)
    of_class = ClassTarget(1, None if minus is None else 0)
    one, other, against = explain(
        classifier, IMAGES[:1], target=[of_text, of_class, replace(of_text, against=True)]
    )
    np.testing.assert_allclose(one.map, other.map, rtol=1e-4, atol=1e-7)
    assert one.score == pytest.approx(other.score, rel=1e-4)
    assert against.score == -one.score
    assert one.title.startswith("a dog" if minus is None else "a dog and not a cat")


MANY_PASSES = (
    *("legrad", "chefer", "gradeclip", "scorecam"),
    *("ablationcam", "reciprocam", "rise", "opticam"),
)


@pytest.mark.parametrize("method", quick(MANY_PASSES, ["legrad", "scorecam", "rise"]))
def test_methods_of_many_passes_explain_a_text(method: str) -> None:
    classifier = PromptClassifier(image_text_model(), tokenizer(), PROMPTS)
    for of_text, of_class in (
        (classifier.text_target("a dog", "a cat"), ClassTarget(1, 0)),
        (classifier.text_target("a dog"), ClassTarget(1)),
    ):
        one, other = explain(
            classifier, IMAGES[:1], target=[of_text, of_class], method=method, budget=40
        )
        assert one.map.max() > 0
        if method not in PROBABILISTIC:
            np.testing.assert_allclose(one.map, other.map, rtol=1e-3, atol=1e-6)


def test_legrad_takes_the_blocks_of_the_image_encoder() -> None:
    """CLIP's text encoder often has as many blocks; other weights in it change no map."""
    maps = []
    for text_layers in (2, 3, 4):
        model = image_text_model(text_layers=text_layers)
        vision = image_text_model().vision_model
        model.vision_model.load_state_dict(vision.state_dict())
        model.visual_projection.load_state_dict(image_text_model().visual_projection.state_dict())
        classifier = PromptClassifier(model, tokenizer(), PROMPTS)
        weight = PromptClassifier(image_text_model(), tokenizer(), PROMPTS).weight
        classifier.weight.copy_(weight)
        (found,) = explain(classifier, IMAGES[:1], target=1, method="legrad")
        maps.append(found.map)
    np.testing.assert_allclose(maps[1], maps[0], rtol=1e-4)
    np.testing.assert_allclose(maps[2], maps[0], rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["CLIP", "SigLIP"])
def test_legrad_is_that_of_its_authors(kind: str) -> None:
    """Their package puts the mean of all tokens into CLIP's head at each layer, not the class token
    that the model reads, and gives SigLIP's tokens to its head without the last norm: here the
    models do the same. It takes two layers of the last ones, unless told otherwise; here all count.
    It min-max normalises the map, and resizes it to the size of the image."""
    package = pytest.importorskip("legrad")  # it pins an old open_clip, so no extra has it
    model, words = open_clip_model(kind)
    if kind == "CLIP":
        model.visual._pool = lambda tokens: (model.visual.ln_post(tokens.mean(1)), tokens)
    else:
        model.visual.trunk.norm = torch.nn.Identity()
    classifier = PromptClassifier(model, words, PROMPTS)
    (found,) = explain(classifier, IMAGES[:1], target=1, method="legrad")
    text = torch.nn.functional.normalize(classifier.weight[1:2], dim=-1)
    wrapped = package.LeWrapper(model, layer_index=0)
    with torch.enable_grad():
        theirs = wrapped.compute_legrad(text, IMAGES[:1], apply_correction=False).detach()
    small = torch.from_numpy(found.map)[None, None]
    steps = [
        lambda values: torch.nn.functional.interpolate(values, scale_factor=16, mode="bilinear"),
        lambda values: (values - values.min()) / (values.max() - values.min()),
    ]
    for step in steps if kind == "CLIP" else reversed(steps):
        small = step(small)
    torch.testing.assert_close(small, theirs, rtol=0, atol=1e-5)


def test_a_text_is_checked_like_a_prompt() -> None:
    classifier = PromptClassifier(image_text_model(), tokenizer(), PROMPTS)
    for text, minus, words in (
        ("xylophone", None, "knows no word"),
        ("a cat", " a cat", "cannot be contrasted with itself"),
        ("a cat", "", "a prompt is empty"),
    ):
        with pytest.raises(InvalidPrompt, match=words):
            classifier.text_target(text, minus)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        # v = (3, 4), |v| = 5; w = (2, 1) and w' = (0, 1): (6 + 4) / 5 + 0.5 and 4 / 5 + 0.5.
        ("cosine", [2.5, 2.5 - 1.3]),
        # log(e^5 + e^5) and log(e^3 + e^5).
        ("mixture", [5 + np.log(2), np.log(2) - np.log1p(np.exp(-2))]),
    ],
)
def test_the_logit_of_a_text_by_hand(form: Any, expected: list[float]) -> None:
    weights = np.array([[2, 1], [0, 1]], np.float32)
    output = Output(logits=torch.zeros(2), layers={"v": torch.tensor([3.0, 4.0])})
    alone = TextTarget("a", "v", weights[:1], form, 0.5)
    contrast = TextTarget("a", "v", weights, form, 0.5, "b")
    found = [float(target.score(output)) for target in (alone, contrast)]
    assert found == pytest.approx(expected)


def test_the_importance_of_words_by_hand() -> None:
    """v = (3, 4), |v| = 5: the logits are 2, 0.8 without the first word, 1.2 without the other."""
    weights = np.array([[2, 1], [0, 1], [2, 0]], np.float32)
    output = Output(logits=torch.zeros(2), layers={"v": torch.tensor([3.0, 4.0])})
    target = TextTarget("a b", "v", weights, "cosine", words=("a", "b"))
    assert target.importances(output) == pytest.approx((1.2, 0.8))
    against = TextTarget("a b", "v", weights, "cosine", against=True, words=("a", "b"))
    assert against.importances(output) == pytest.approx((-1.2, -0.8))
    assert TextTarget("a", "v", weights[:1], "cosine").importances(output) == ()


def test_a_word_counts_what_the_score_loses_without_it() -> None:
    classifier = PromptClassifier(image_text_model(), tokenizer(), PROMPTS)
    targets = [
        classifier.text_target("the remote control", "a cat", words=True),
        classifier.text_target("the remote control", "a cat"),
        classifier.text_target("remote control", "a cat"),
    ]
    told, whole, without = explain(classifier, IMAGES[:1], target=targets)
    assert [word for word, _ in told.words] == ["the", "remote", "control"]
    assert told.words[0][1] == pytest.approx(whole.score - without.score, abs=1e-4)
    np.testing.assert_array_equal(told.map, whole.map)
    assert whole.words == ()
    with pytest.raises(InvalidPrompt, match="'cat' has 1 word; the importance"):
        classifier.text_target("cat", words=True)


def test_a_prompt_is_a_label() -> None:
    classifier = PromptClassifier(image_text_model(), tokenizer(), PROMPTS)
    by_name, by_index = explain(classifier, IMAGES[:1], target=["a dog", 1])
    np.testing.assert_array_equal(by_name.map, by_index.map)
    with pytest.raises(InvalidTarget, match=r"no label 'a dok'; did you mean 'a dog'\?"):
        explain(classifier, IMAGES, target="a dok")


def test_a_pipeline_for_zero_shot_classification_takes_text() -> None:
    model, photo = image_text_model(), Image.effect_noise((90, 70), 80).convert("RGB")
    pipeline = transformers.pipeline(
        "zero-shot-image-classification",
        model=model,
        tokenizer=tokenizer(),
        image_processor=image_processor(),
    )
    said = {one["label"]: one["score"] for one in pipeline(photo, candidate_labels=list(PROMPTS))}
    found = explain(pipeline, [photo], text=PROMPTS, target=list(PROMPTS))
    for explanation, prompt in zip(found, PROMPTS, strict=True):
        assert explanation.probability == pytest.approx(said[prompt], rel=1e-4)
    with pytest.raises(InvalidPrompt, match="pass text, the prompts"):
        explain(pipeline, [photo])
    with pytest.raises(InvalidPrompt, match="not a CLIPModel; make a cam"):
        explain(model, [photo], text=PROMPTS)


@pytest.mark.parametrize(
    ("prompts", "templates", "words"),
    [
        ([], ["{}"], "there are 0 prompts; there may be 1 to 4096"),
        (["cat"] * 4097, ["{}"], "there are 4097 prompts"),
        ("a cat", ["{}"], "the prompts are not a list of texts"),
        (["a cat"], ["{}"], "probability of 'a cat' alone is always 1; name a second prompt"),
        (["a cat", " "], ["{}"], "a prompt is empty; it is what to look for"),
        (["a cat", "a cat "], ["{}"], "the prompt 'a cat' is there twice"),
        (["a\ncat"], ["{}"], "has control characters"),
        (["a\ud800cat"], ["{}"], "has control characters"),
        (["a\x00cat"], ["{}"], r"the prompt 'a\\x00cat' has control characters"),
        (["cat " * 10_000], ["{}"], r"has 10001 tokens; the text encoder reads at most 16"),
        (["xylophone"], ["{}"], "tokenizer knows no word of 'xylophone'"),
        (["cat", "dog"], ["a photo"], r"the template 'a photo' has not one \{\}"),
        (["cat", "dog"], [], "the templates are not a list"),
    ],
)
def test_what_is_no_prompt_is_refused(prompts: Any, templates: Any, words: str) -> None:
    with pytest.raises(InvalidPrompt, match=words):
        PromptClassifier(image_text_model(), tokenizer(), prompts, templates)


def test_a_prompt_is_text_and_nothing_else() -> None:
    prompts = ("{cat!r} {0} <b>cat</b>", "{}")
    assert PromptClassifier(image_text_model("Siglip"), tokenizer(), prompts[:1])
    with pytest.raises(InvalidPrompt, match=r"knows no word of '\{\}'"):
        PromptClassifier(image_text_model("Siglip"), tokenizer(), prompts)


@pytest.mark.parametrize("kind", ["CLIP", "Siglip"])
def test_the_activation_is_that_of_the_training(kind: str) -> None:
    model = image_text_model(kind)
    classifier = PromptClassifier(model, tokenizer(), PROMPTS)
    (found,) = explain(classifier, IMAGES[:1], target=1)
    logits = own_logits(model, list(PROMPTS), IMAGES[:1])[0].detach()
    expected = logits.softmax(0)[1] if kind == "CLIP" else logits[1].sigmoid()
    assert found.probability == pytest.approx(float(expected), rel=1e-4)


def test_a_model_with_other_logits_is_refused() -> None:
    model = image_text_model()
    classifier = PromptClassifier(model, tokenizer(), PROMPTS)
    model.logit_scale.data += 1  # what the classifier does not know of
    with pytest.raises(ModelError, match="computes other logits"):
        classifier.check(IMAGES[:1])


def test_a_model_without_a_text_encoder_is_refused() -> None:
    with pytest.raises(ModelError, match="a Linear is not an image–text model"):
        PromptClassifier(torch.nn.Linear(1, 1), tokenizer(), PROMPTS)
    model = image_text_model()
    del model.logit_scale
    with pytest.raises(ModelError, match="neither logit_scale nor temperature"):
        PromptClassifier(model, tokenizer(), PROMPTS)
