"""Explained answers: the model's own words, and maps that are the formulas of their papers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any, Literal

import cv2
import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, normalizers

from cam import AnswerOptions, ExplainedAnswer, VisionLanguageModel, explain_answer
from cam.answers.answer import AnswerProgress, AnswerToken, phrase_of, words_of
from cam.answers.explain import answer_in_steps
from cam.answers.methods import METHODS, AnswerMethod
from cam.answers.passes import _blocks, blurred, likely
from cam.answers.vision_language import Asked, Read
from cam.errors import (
    CamError,
    InvalidImages,
    InvalidOption,
    InvalidPrompt,
    MethodUnsuited,
    ModelError,
)
from tests.cam.answers.test_token_maps import stated
from tests.quick import quick
from tests.zoo.language import FAMILIES, family, tokenizer

PHOTO = np.random.default_rng(1).integers(0, 256, (90, 150, 3), np.uint8)
QUESTION = "what is in the picture ?"
SEVERAL = [name for name, method in METHODS.items() if method.passes > 1]
FORGETFUL = ("paligemma", "gemma3", "gemma4", "gemma4-large")


@pytest.fixture(scope="module")
def llava() -> VisionLanguageModel:
    return VisionLanguageModel(*family("llava"))


def asked(model: VisionLanguageModel, question: str = QUESTION, **options: Any) -> ExplainedAnswer:
    return explain_answer(model, PHOTO, question, AnswerOptions(**options))


def close(
    found: NDArray[np.float32] | None, expected: Any, *, rtol: float, atol: float = 0
) -> None:
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", ["llava", "qwen2-vl", "smolvlm"])
def test_the_answer_is_that_of_generate(name: str) -> None:
    model, processor = family(name)
    found = asked(VisionLanguageModel(model, processor), max_tokens=8)
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    inputs = processor(images=[PHOTO], text=[text], return_tensors="pt")
    theirs = model.generate(
        **inputs,
        max_new_tokens=8,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    said = theirs.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    assert [token.id for token in found.tokens] == said
    likely = [float(row[0].softmax(-1)[one]) for row, one in zip(theirs.logits, said, strict=True)]
    np.testing.assert_allclose([token.probability for token in found.tokens], likely, rtol=1e-4)
    best = theirs.logits[0][0].softmax(-1).topk(3)
    alternatives = found.tokens[0].alternatives
    np.testing.assert_allclose([one.probability for one in alternatives], best.values, rtol=1e-4)


def restated(model: VisionLanguageModel, tokens: list[int]) -> list[NDArray[np.float64]]:
    """Token activation maps of LLaVA's 64 image tokens, from one plain pass with all hidden
    states, token by token."""
    inputs = dict(model.ask(PHOTO, QUESTION).inputs)
    prompt = inputs["input_ids"][0].tolist()
    inputs["input_ids"] = torch.tensor([prompt + tokens])
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad():
        states = model.model(**inputs, output_hidden_states=True).hidden_states[-1][0]
        logits = model.model.lm_head(states).numpy()
    ids = prompt + tokens
    image = [place for place, one in enumerate(ids) if one == model.image_token]
    said = model.tokenizer(QUESTION, add_special_tokens=False)["input_ids"]
    first = max(at for at in range(len(prompt)) if ids[at : at + len(said)] == said)
    heard = list(range(first, first + len(said)))
    maps = []
    for number, word in enumerate(tokens):
        own = np.maximum(logits[image, word], 0)
        # Words of the question have their own states, those of the answer the ones before them.
        before = [(ids[place], place) for place in heard]
        before += [(ids[place], place - 1) for place in range(len(prompt), len(prompt) + number)]
        before = [(one, place) for one, place in before if one != word]
        weights = np.maximum(logits[[place for _, place in before], word], 0)
        rest = own
        if weights.sum() > 0:
            earlier = np.maximum(logits[np.ix_(image, [one for one, _ in before])], 0)
            mixed = earlier @ weights / weights.sum()
            if mixed @ mixed > 0:
                rest = np.maximum(own - (own @ mixed) / (mixed @ mixed) * mixed, 0)
        maps.append(stated(rest.reshape(8, 8)))
    return maps


def test_tam_is_the_papers_formula_from_hidden_states(llava: VisionLanguageModel) -> None:
    found = asked(llava, max_tokens=6, evidence=False)
    maps = restated(llava, [token.id for token in found.tokens])
    assert any(one.any() for one in maps)
    for token, expected in zip(found.tokens, maps, strict=True):
        close(token.map, expected, rtol=1e-3, atol=1e-4)


def test_the_template_is_no_part_of_the_question(llava: VisionLanguageModel) -> None:
    """What it says before and behind the question, such as who speaks next, was counted as words of
    the question."""
    for question in (QUESTION, "what is blue ?", "picture"):
        asked_ = llava.ask(PHOTO, question)
        ids = asked_.inputs["input_ids"][0][asked_.words]
        assert llava.tokenizer.decode(ids).split() == question.split()
    behind = llava.ask(PHOTO, QUESTION)
    special = set(llava.tokenizer.all_special_ids)
    after = behind.inputs["input_ids"][0][int(behind.words[-1]) + 1 :].tolist()
    assert set(after) - special  # the template does say something


def test_words_that_are_said_again_are_listed() -> None:
    texts = ["a", " circle", " left", " of", " a", " Circle", "."]
    tokens = [AnswerToken(number, text, 0.5) for number, text in enumerate(texts)]
    answer = ExplainedAnswer(
        "?", "".join(texts), "tam", tuple(tokens), words_of(tokens), True, False, 1, 1, 1
    )
    assert answer.repeated == ["a", "circle"]


def test_logits_are_the_head_at_the_image_tokens(llava: VisionLanguageModel) -> None:
    found = asked(llava, max_tokens=3, method="logits", evidence=False)
    inputs = llava.ask(PHOTO, QUESTION).inputs
    with torch.no_grad():
        logits = llava.model(**inputs).logits[0]
    at_image = logits[inputs["input_ids"][0] == llava.image_token]
    for token in found.tokens:
        expected = at_image[:, token.id].relu().reshape(8, 8)
        close(token.map, expected, rtol=1e-4, atol=1e-5)


def whole(
    model: VisionLanguageModel, tokens: list[int]
) -> tuple[dict[str, torch.Tensor], int, torch.Tensor]:
    """Inputs of question and answer, the question's length, and which tokens are the image's."""
    inputs = dict(model.ask(PHOTO, QUESTION).inputs)
    length = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([tokens])], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs, length, inputs["input_ids"][0] == model.image_token


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
def test_gradients_are_those_of_the_hidden_states_before_the_middle_block(
    llava: VisionLanguageModel, method: str
) -> None:
    found = asked(llava, max_tokens=3, method=method, evidence=False)
    inputs, length, image = whole(llava, [token.id for token in found.tokens])
    output = llava.model(**inputs, output_hidden_states=True)
    middle = output.hidden_states[1]  # the input of the second of three blocks
    for number, token in enumerate(found.tokens):
        logit = output.logits[0, length - 1 + number, token.id]
        (gradient,) = torch.autograd.grad(logit, middle, retain_graph=True)
        weights = gradient[0, image]
        if method == "gradcam":
            weights = weights.mean(0).expand_as(weights)
        expected = (middle[0, image] * weights).sum(1).relu().detach().reshape(8, 8)
        close(token.map, expected, rtol=1e-3, atol=1e-6)


@pytest.fixture
def eager(llava: VisionLanguageModel) -> Iterator[VisionLanguageModel]:
    before = llava.model.config._attn_implementation
    yield llava
    llava.model.set_attn_implementation(before)


@pytest.mark.parametrize("method", ["attention", "rollout"])
def test_attention_is_that_of_all_heads_and_blocks(eager: VisionLanguageModel, method: str) -> None:
    found = asked(eager, max_tokens=3, method=method, evidence=False)
    inputs, length, image = whole(eager, [token.id for token in found.tokens])
    eager.model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = eager.model(**inputs, output_attentions=True).attentions
    mean = torch.stack(weights).mean((1, 2)).double()
    if method == "rollout":
        one = torch.eye(mean.shape[-1])
        flow = (one + mean[2]) / 2 @ ((one + mean[1]) / 2) @ ((one + mean[0]) / 2)
    else:
        flow = mean.mean(0)
    for number, token in enumerate(found.tokens):
        expected = flow[length - 1 + number, image].reshape(8, 8)
        close(token.map, expected, rtol=1e-3, atol=1e-6)


def test_legrad_is_the_gradient_of_each_blocks_own_logit(eager: VisionLanguageModel) -> None:
    """By differences instead of gradients: the attention of one block from one place is changed by
    a little, and the block's output is read by the last norm and the head."""
    found = asked(eager, max_tokens=2, method="legrad", evidence=False)
    inputs, length, image = whole(eager, [token.id for token in found.tokens])
    module = copy.deepcopy(eager.model).double()
    module.set_attn_implementation("eager")
    text = module.model.language_model
    inputs["pixel_values"] = inputs["pixel_values"].double()
    token, place, rows = found.tokens[1], length, []

    def logit(block: Any, hidden: torch.Tensor, row: torch.Tensor) -> float:
        values = block.self_attn.v_proj(block.input_layernorm(hidden))[0].view(-1, 2, 8)
        # Two heads share their values.
        mixed = torch.einsum("hn,nhd->hd", row, values.repeat_interleave(2, 1)).flatten()
        out = hidden[0, place] + block.self_attn.o_proj(mixed)
        out = out + block.mlp(block.post_attention_layernorm(out))
        return float(module.lm_head(text.norm(out))[token.id])

    with torch.no_grad():
        output = module(**inputs, output_attentions=True, output_hidden_states=True)
        given = zip(text.layers, output.hidden_states[:-1], output.attentions, strict=True)
        for block, hidden, weights in given:
            kept = weights[0, :, place]
            slopes = torch.zeros_like(kept)
            for head in range(len(kept)):
                for column in image.nonzero()[:, 0].tolist():
                    step = torch.zeros_like(kept)
                    step[head, column] = 1e-3
                    slopes[head, column] = logit(block, hidden, kept + step)
                    slopes[head, column] -= logit(block, hidden, kept - step)
            rows.append((slopes / 2e-3).clamp(min=0).mean(0)[image])
        assert logit(block, hidden, kept) == pytest.approx(float(output.logits[0, place, token.id]))
    expected = torch.stack(rows).mean(0).reshape(8, 8)
    assert expected.max() > 0
    close(token.map, expected, rtol=1e-2, atol=1e-4 * float(expected.max()))


def test_legrad_explains_a_few_tokens_at_a_time(
    llava: VisionLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = asked(llava, answer="a red cat", method="legrad", evidence=False)
    monkeypatch.setattr("cam.answers.passes.GROUP", 2)
    found = asked(llava, answer="a red cat", method="legrad", evidence=False)
    for mine, theirs in zip(found.tokens, whole.tokens, strict=True):
        close(mine.map, theirs.map, rtol=1e-5, atol=1e-8)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's
@pytest.mark.parametrize("name", quick(FAMILIES, ["llava", "llava-onevision", "qwen2-vl"]))
def test_a_photo_is_read_once_for_all_questions(name: str) -> None:
    """Not by those whose image tokens depend on the question (PaliGemma), and that forget tokens
    (Gemma 3 and 4)."""
    module, processor = family(name)
    model = VisionLanguageModel(module, processor, photos=4)
    plain = VisionLanguageModel(module, processor)
    model.check()
    plain.check()
    lengths: list[int] = []

    def note(block: Any, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        lengths.append((given[0] if given else named["hidden_states"]).shape[1])

    handle = _blocks(model)[0].register_forward_pre_hook(note, with_kwargs=True)
    for number, question in enumerate(("a red cat", "what is a cat", "a red cat")):
        expected = asked(plain, question=question, max_tokens=4)
        lengths.clear()
        found = asked(model, question=question, max_tokens=4)
        whole = found.prompt_tokens
        shares = number > 0 and name not in FORGETFUL
        assert (lengths[0] < whole - found.image_tokens) == shares
        assert (lengths[-1] < whole) == shares  # the pass without the picture
        alike(found, expected)
    given = {"answer": "a red cat", "question": "a red cat"}
    for method in ("tam", "attention", "gradcam"):  # those that look inside read all tokens
        alike(asked(model, method=method, **given), asked(plain, method=method, **given))
    handle.remove()


def alike(found: ExplainedAnswer, expected: ExplainedAnswer) -> None:
    assert found.text == expected.text
    for token, other in zip(found.tokens, expected.tokens, strict=True):
        assert token.evidence == pytest.approx(other.evidence, abs=1e-5)
        close(token.map, other.map, rtol=1e-3, atol=1e-4)


def test_what_is_kept_of_a_photo_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    module, processor = family("llava")
    model = VisionLanguageModel(module, processor, photos=4)
    model.check()
    asked(model, max_tokens=2)
    kept = [each.prefix for each in model._encoded.values()]
    assert sum(prefix is not None for prefix in kept) == 2  # the photo, and the blurred one
    monkeypatch.setattr("cam.answers.encoding.MAX_PREFIX_BYTES", 1000)
    other = VisionLanguageModel(module, processor, photos=4)
    other.check()
    asked(other, max_tokens=2)
    assert not any(each.prefix for each in other._encoded.values())


def passing_back(x: torch.Tensor, part: float) -> torch.Tensor:
    return x * part + (x * (1 - part)).detach()


def with_rules(module: Any) -> Any:
    """Return a copy of a model whose blocks pass back relevance: by changed modules, where cam
    changes functions."""
    module = copy.deepcopy(module)

    def norm(self: Any, x: torch.Tensor) -> Any:
        power = x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        return self.weight * x / power.sqrt().detach()

    def gated(self: Any, x: torch.Tensor) -> Any:
        gate = self.gate_proj(x)
        open_by = (torch.sigmoid(gate) * gate / gate).detach() * gate
        return self.down_proj(passing_back(open_by * self.up_proj(x), 0.5))

    text = module.model.language_model
    for part in text.modules():
        if type(part).__name__ == "Qwen2RMSNorm":
            part.forward = MethodType(norm, part)
        elif type(part).__name__ == "Qwen2MLP":
            part.forward = MethodType(gated, part)
    for block in text.layers:
        for name, share in (("q_proj", 0.25), ("k_proj", 0.25), ("v_proj", 0.5)):
            getattr(block.self_attn, name).register_forward_hook(
                lambda layer, given, output, share=share: passing_back(output, share)
            )
    return module


def test_attnlrp_is_the_gradient_of_modules_with_its_rules(llava: VisionLanguageModel) -> None:
    found = asked(llava, max_tokens=3, method="attnlrp", evidence=False)
    inputs, length, image = whole(llava, [token.id for token in found.tokens])
    output = with_rules(llava.model)(**inputs, output_hidden_states=True)
    first = output.hidden_states[0]
    for number, token in enumerate(found.tokens):
        logit = output.logits[0, length - 1 + number, token.id]
        (slopes,) = torch.autograd.grad(logit, first, retain_graph=True)
        expected = (first * slopes)[0, image].sum(1).relu().detach().reshape(8, 8)
        assert expected.any()
        close(token.map, expected, rtol=1e-3, atol=1e-6)


def test_chefer_is_the_product_of_attention_times_gradient() -> None:
    """As the paper has it: whole matrices, from the first block on. Larger logits have larger
    gradients, so the order of the blocks counts."""
    module, processor = family("llava")
    module.set_output_embeddings(copy.deepcopy(module.get_output_embeddings()))
    module.lm_head.weight.data *= 1000
    model = VisionLanguageModel(module, processor)
    found = asked(model, max_tokens=3, method="chefer", evidence=False)
    inputs, length, image = whole(model, [token.id for token in found.tokens])
    module.set_attn_implementation("eager")
    output = module(**inputs, output_attentions=True)
    for number, token in enumerate(found.tokens):
        logit = output.logits[0, length - 1 + number, token.id]
        slopes = torch.autograd.grad(logit, output.attentions, retain_graph=True)
        relevance = torch.eye(inputs["input_ids"].shape[1], dtype=torch.double)
        for weights, slope in zip(output.attentions, slopes, strict=True):
            positive = (slope * weights).clamp(min=0).detach().double()
            relevance = relevance + positive[0].mean(0) @ relevance
        expected = relevance[length - 1 + number, image].reshape(8, 8)
        assert expected.any()
        close(token.map, expected, rtol=1e-3, atol=1e-9)


def test_gradients_are_taken_where_image_tokens_reach_the_answer() -> None:
    """The last block of the small Gemma 4 reads the keys and values of another one: the middle one
    of three blocks is the second."""
    model = VisionLanguageModel(*family("gemma4"))
    found = asked(model, answer="a red cat", method="gradcam")
    seen: list[torch.Tensor] = []

    def keep(block: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(given[0].requires_grad_())
        return (seen[-1], *given[1:])

    handle = model.model.model.language_model.layers[1].register_forward_pre_hook(keep)
    question = model.ask(PHOTO, QUESTION)
    inputs = dict(question.inputs)
    ids = torch.tensor([[token.id for token in found.tokens]])
    for name, more in (
        ("input_ids", ids),
        ("attention_mask", torch.ones_like(ids)),
        ("mm_token_type_ids", torch.zeros_like(ids)),
    ):
        inputs[name] = torch.cat([inputs[name], more], 1)
    output = model.model(**inputs)
    handle.remove()
    image = question.image
    for number, token in enumerate(found.tokens):
        logit = output.logits[0, question.length - 1 + number, token.id]
        (slopes,) = torch.autograd.grad(logit, seen[0], retain_graph=True)
        heat = (seen[0][0, image] @ slopes[0, image].mean(0)).relu().detach()
        close(token.map, heat.reshape(6, 10), rtol=1e-3, atol=1e-6)
    assert any(token.map is not None and token.map.any() for token in found.tokens)


def test_occlusion_is_the_fall_of_the_log_probability(llava: VisionLanguageModel) -> None:
    found = asked(llava, max_tokens=2, method="occlusion", evidence=False)
    changed = PHOTO.copy()
    part = slice(90 * 2 // 8, 90 * 3 // 8), slice(150 * 5 // 8, 150 * 6 // 8)
    changed[part] = blurred(PHOTO)[part]
    (first, second) = found.tokens
    left = explain_answer(
        llava,
        changed,
        QUESTION,
        AnswerOptions(answer=found.text, method="logits", evidence=False),
    )
    for token, other in zip((first, second), left.tokens, strict=True):
        fall = np.log(token.probability) - np.log(other.probability)
        assert token.map is not None
        assert token.map.shape == (8, 8)
        assert token.map[2, 5] == pytest.approx(max(fall, 0), abs=1e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # PaliGemma's
@pytest.mark.parametrize("name", quick(FAMILIES, ["llava", "qwen2.5-vl", "paligemma", "gemma3"]))
def test_all_methods_know_the_blocks_of_every_family(name: str) -> None:
    model = VisionLanguageModel(*family(name))
    for method in ("gradcam", "hirescam", "legrad", "attnlrp", "chefer", "attention", "rollout"):
        found = asked(model, answer="a red cat", method=method, evidence=False)
        heat = [token.map for token in found.tokens]
        assert all(one is not None and np.isfinite(one).all() for one in heat)
        assert any(one is not None and one.any() for one in heat)


def test_eagle_is_the_papers_greedy_search(
    llava: VisionLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On nine parts, of which five are found; every third step tries all, the others four."""
    for name, value in (("EAGLE_CELLS", 3), ("FOUND", 5), ("RANKED", 3), ("SCOPE", 4)):
        monkeypatch.setattr(f"cam.answers.passes.{name}", value)
    given: dict[str, Any] = {"answer": "a red cat", "evidence": False}
    found = asked(llava, method="eagle", word="red cat", **given)
    assert [token.map is None for token in found.tokens] == [True, False, False]

    def probability(photo: NDArray[np.uint8]) -> float:
        read = explain_answer(llava, photo, QUESTION, AnswerOptions(method="logits", **given))
        return (read.tokens[1].probability + read.tokens[2].probability) / 2

    def objective(parts: list[int]) -> float:
        inside = np.zeros((3, 3, 1), bool)
        inside.flat[parts] = True
        inside = inside.repeat(30, 0).repeat(50, 1)
        plain = blurred(PHOTO)
        return (
            1
            + probability(np.where(inside, PHOTO, plain))
            - probability(np.where(inside, plain, PHOTO))
        )

    order: list[int] = []
    gains, rest, before = [], list(range(9)), objective([])
    for step in range(5):
        some = rest if step in (0, 3) else rest[:4]
        values = {part: objective([*order, part]) for part in some}
        if step in (0, 3):
            rest = sorted(rest, key=lambda part: values[part], reverse=True)
        best = max(values, key=lambda part: values[part])
        rest.remove(best)
        order.append(best)
        gains.append(abs(values[best] - before))
        before = values[best]
    expected = np.zeros(9)
    expected[order] = np.append(np.cumsum(gains[:0:-1])[::-1], 0) / sum(gains[1:])
    close(found.tokens[1].map, expected.reshape(3, 3), rtol=1e-2, atol=1e-3)
    assert asked(llava, method="eagle", word="dog", **given).tokens[0].map is None


def test_a_method_that_is_added_to_the_table_is_asked(
    llava: VisionLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maps' number is the one of the token or of the word's first token."""

    def of_token(model: VisionLanguageModel, asked: Asked) -> Callable[[int, Read], Any]:
        return lambda token, read: np.full((1, 2), token, np.float32)

    def of_answer(model: VisionLanguageModel, asked: Asked, tokens: list[int]) -> Any:
        yield AnswerProgress(1, 1, "mine")
        return [np.full((1, 2), token, np.float32) for token in tokens]

    def of_word(model: VisionLanguageModel, asked: Asked, tokens: list[int], word: slice) -> Any:
        yield AnswerProgress(1, 1, "mine")
        return np.full((1, 2), tokens[word][0], np.float32)

    for mine in (
        AnswerMethod("mine", "s", of_token, of="token"),
        AnswerMethod("mine", "s", of_answer),
        AnswerMethod("mine", "s", of_word, of="word"),
    ):
        monkeypatch.setitem(METHODS, "mine", mine)
        found = asked(llava, answer="a red cat", method="mine", word="cat", evidence=False)
        for token in found.tokens[-1:] if mine.of == "word" else found.tokens:
            close(token.map, [[token.id, token.id]], rtol=0)
    assert [token.map is None for token in found.tokens] == [True, True, False]


@pytest.mark.parametrize(
    ("of", "made", "why"),
    [
        ("token", np.zeros(4), "1 map of the shapes (4,); it must return 1 map (h, w)"),
        ("answer", [np.zeros((1, 2))], "1 map of the shapes (1, 2); it must return 3 maps (h, w)"),
        ("answer", None, "1 map of the shapes (); it must return 3 maps (h, w)"),
        (
            "answer",
            [np.zeros((1, 2)), np.zeros((2, 1)), np.zeros((1, 2))],
            "3 maps of the shapes (1, 2), (2, 1); it must return 3 maps (h, w)",
        ),
        ("word", [], "1 map of the shapes (0,); it must return 1 map (h, w)"),
    ],
)
def test_an_added_method_that_returns_no_maps_is_refused(
    llava: VisionLanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    of: Literal["token", "answer", "word"],
    made: Any,
    why: str,
) -> None:
    def at_once(*given: Any) -> Any:
        return lambda *token: made

    def later(*given: Any) -> Any:
        yield AnswerProgress(1, 1, "mine")
        return made

    mine = AnswerMethod("mine", "s", at_once if of == "token" else later, of=of)
    monkeypatch.setitem(METHODS, "mine", mine)
    with pytest.raises(MethodUnsuited) as refused:
        asked(llava, answer="a red cat", method="mine", word="cat", evidence=False)
    assert str(refused.value) == f"the function of 'mine' returned {why}"


@pytest.mark.parametrize("method", quick(SEVERAL, ["occlusion"]))
def test_the_passes_are_as_many_as_is_said(
    llava: VisionLanguageModel, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def counted(*given: Any) -> Any:
        made.append(1)
        return likely(*given)

    monkeypatch.setattr("cam.answers.passes.likely", counted)
    asked(llava, answer="a red cat", method=method, word="cat", evidence=False)
    assert len(made) == METHODS[method].passes


def test_a_given_answer_is_read_as_the_models_own(llava: VisionLanguageModel) -> None:
    given = asked(llava, answer="a red cat", evidence=True)
    assert (given.text, given.given, given.finished) == ("a red cat", True, True)
    assert [word.text for word in given.words] == ["a", "red", "cat"]
    own = asked(llava, max_tokens=4)
    again = asked(llava, answer=own.text)
    assert [token.id for token in own.tokens] == [token.id for token in again.tokens]
    for mine, theirs in zip(own.tokens, again.tokens, strict=True):
        assert mine.probability == pytest.approx(theirs.probability, rel=1e-3)
        close(mine.map, theirs.map, rtol=1e-2, atol=1e-3)


def test_evidence_is_the_log_ratio_to_the_blurred_photo(llava: VisionLanguageModel) -> None:
    found = asked(llava, answer="a red cat", method="logits")
    blind = explain_answer(
        llava,
        blurred(PHOTO),
        QUESTION,
        AnswerOptions(answer="a red cat", method="logits", evidence=False),
    )
    for mine, theirs in zip(found.tokens, blind.tokens, strict=True):
        expected = np.log(mine.probability / theirs.probability)
        assert mine.evidence == pytest.approx(expected, abs=1e-4)
    word = found.words[1]
    assert word.evidence is not None
    assert word.from_language is (word.evidence < 0.3)


def test_evidence_of_improbable_tokens_is_whole() -> None:
    """Their probability is 0 in 32 bits; its logarithm is not."""
    module, processor = family("llava")
    module.set_output_embeddings(copy.deepcopy(module.get_output_embeddings()))
    module.lm_head.weight.data *= 300
    model = VisionLanguageModel(module, processor)
    found = asked(model, answer="a red cat", method="logits")
    logs = []
    for photo in (PHOTO, blurred(PHOTO)):
        question = model.ask(photo, QUESTION)
        logs.append(likely(model, question, [token.id for token in found.tokens]))
    assert min(map(min, logs)) < -50
    for token, expected in zip(found.tokens, logs[0] - logs[1], strict=True):
        assert token.evidence == pytest.approx(float(expected), rel=1e-3, abs=1e-3)


def test_logits_that_are_no_numbers_are_refused() -> None:
    module, processor = family("llava")
    model = VisionLanguageModel(module, processor)
    module.lm_head.register_forward_hook(lambda layer, given, logits: logits * torch.nan)
    with pytest.raises(ModelError, match="logits of the model are not finite"):
        asked(model, max_tokens=2)


def test_scores_are_areas_under_the_words_probability(llava: VisionLanguageModel) -> None:
    found = asked(
        llava, answer="a red cat", method="logits", evidence=False, word="red cat", evaluate=True
    )
    word = found.phrase("red cat")
    assert word is not None
    assert word.map is not None
    heat = cv2.resize(word.map, (150, 90), interpolation=cv2.INTER_LINEAR).ravel()
    order = np.argsort(-heat, kind="stable")

    def area(begin: NDArray[np.uint8], end: NDArray[np.uint8], whole: int) -> float:
        curve = []
        for step in range(11):
            changed = begin.reshape(-1, 3).copy()
            changed[order[: 90 * 150 * step // 10]] = end.reshape(-1, 3)[
                order[: 90 * 150 * step // 10]
            ]
            photo = changed.reshape(PHOTO.shape)
            options = AnswerOptions("a red cat", method="logits", evidence=False)
            read = explain_answer(llava, photo, QUESTION, options)
            curve.append(read.tokens[1].probability * read.tokens[2].probability)
        mean = sum(curve) - (curve[0] + curve[-1]) / 2
        return mean / 10 / curve[whole]

    assert found.scores is not None
    plain = blurred(PHOTO)
    assert found.scores.deletion == pytest.approx(area(PHOTO, plain, 0), rel=2e-2)
    assert found.scores.insertion == pytest.approx(area(plain, PHOTO, -1), rel=2e-2)
    assert (found.scores.energy, found.scores.pointing) == (None, None)
    left = np.arange(150) < 70
    region = np.broadcast_to(left, (90, 150))
    found = asked(
        llava, answer="a red cat", method="logits", word="red cat", evaluate=True, region=region
    )
    share = heat.reshape(90, 150)[:, :70].sum() / heat.sum()
    assert found.scores is not None
    assert found.scores.energy == pytest.approx(share, rel=1e-4)
    assert found.scores.pointing == float(heat.argmax() % 150 < 70)
    assert asked(llava, answer="a red cat", word="dog", evaluate=True).scores is None
    assert asked(llava, answer="a red cat", word="red").scores is None


def test_the_blurred_photo_is_one_colour() -> None:
    plain = blurred(PHOTO)
    assert plain.shape == PHOTO.shape
    np.testing.assert_allclose(plain.reshape(-1, 3).std(0), 0)
    np.testing.assert_allclose(plain[0, 0], PHOTO.reshape(-1, 3).mean(0), atol=1)


def test_a_phrase_is_the_mean_of_its_words(llava: VisionLanguageModel) -> None:
    found = asked(llava, answer="a red cat on the red dog")
    phrase = found.phrase("Red Dog")
    assert phrase is not None
    assert phrase.text == "red dog"
    red, dog = found.words[5:7]
    assert red.map is not None
    assert dog.map is not None
    close(phrase.map, (red.map + dog.map) / 2, rtol=1e-6)
    assert phrase.probability == pytest.approx(red.probability * dog.probability)
    assert found.phrase("blue") is None
    assert found.phrase("") is None


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["A", " c", "at", "."], ["A", "cat", "."]),
        (["“", "cats", "”", ",", " dogs"], ["“", "cats", "”,", "dogs"]),
        (["one\n", "two"], ["one", "two"]),
        ([" it", "'", "s", " 3", ".", "5", "!"], ["it's", "3.5", "!"]),
        (["..."], ["..."]),
        (["", "a", "", " b"], ["a", "b"]),
        (["猫", "と", "犬"], ["猫", "と", "犬"]),
        ([], []),
    ],
)
def test_tokens_are_grouped_to_words(texts: list[str], words: list[str]) -> None:
    tokens = [AnswerToken(0, text, 0.5) for text in texts]
    assert [word.text for word in words_of(tokens)] == words


def test_all_bytes_of_a_letter_belong_to_its_word() -> None:
    texts = ("so", "", " 红", "", "色", " ", "", "é!")
    tokens = [AnswerToken(0, text, 0.5, evidence=1.0) for text in texts]
    found = [(word.text, word.start, word.stop) for word in words_of(tokens)]
    assert found == [("so", 0, 1), ("红", 1, 3), ("色", 3, 5), ("é!", 6, 8)]
    word = words_of(tokens)[1]
    assert (word.probability, word.evidence) == (0.25, 2.0)


@pytest.mark.parametrize(
    ("texts", "phrase", "place"),
    [
        (["a", " red", " circle", "."], "Red circle.", (1, 4)),
        (["(", "red", ")", " cat"], "(red)", (0, 3)),
        (["red", ",", " round", " cat"], "red, round", (0, 3)),
        (["日本", "語", "です"], "日本語", (0, 2)),
        (["고", "양이", "가", " 있다"], "고양이가", (0, 3)),
        (["a", " red", " circle"], "red cat", None),
        (["a", " red"], "re", None),
    ],
)
def test_a_phrase_is_found_as_it_is_written(
    texts: list[str], phrase: str, place: tuple[int, int] | None
) -> None:
    found = phrase_of([AnswerToken(0, text, 0.5) for text in texts], phrase)
    assert (found and (found.start, found.stop)) == place


def with_tokenizer(words: list[str], merges: list[tuple[str, str]], **named: Any) -> Any:
    """A LLaVA whose tokens are pieces of words, `▁` for a space, or bytes."""
    special = ["<pad>", "<eos>", "<unk>", "<image>", "<bos>"]
    ids = {word: number for number, word in enumerate(dict.fromkeys(special + words))}
    made = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, **named))
    spaces = normalizers.Replace(" ", "▁")
    # With merges, as Llama 2 has it: each text begins with a space.
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if merges else spaces
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)] if merges else parts)
    model, processor = family("llava")
    processor.tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        bos_token="<bos>",
        extra_special_tokens={"image_token": "<image>"},
    )
    processor.chat_template = (
        "{% for part in messages[0].content %}{% if part.type == 'image' %}<image>"
        "{% else %}{{ part.text }}{% endif %}{% endfor %} :"
    )
    model.resize_token_embeddings(len(ids), mean_resizing=False)
    return VisionLanguageModel(model, processor)


def test_letters_of_several_tokens_are_whole() -> None:
    letters = [*"▁acist:?", *(f"<0x{byte:02X}>" for byte in range(256))]
    model = with_tokenizer(letters, [], byte_fallback=True)
    for answer in ("a 红 cat", "红色", "is 😀 a cat", "é"):
        found = asked(model, "is a cat", answer=answer, method="logits")
        assert found.text == answer
        assert [word.text for word in found.words] == (
            ["红", "色"] if answer == "红色" else answer.split()
        )
        assert all(word.map is not None for word in found.words)


def test_a_given_answer_has_the_tokens_that_the_model_would_say() -> None:
    """The tokenizer puts a space before each text, the answer's own among them."""
    words = ["▁", *"acist:", "▁a", "▁c", "at", "▁cat", "▁i", "▁is"]
    merges = [("▁", "a"), ("▁", "c"), ("a", "t"), ("▁c", "at"), ("▁", "i"), ("▁i", "s")]
    model = with_tokenizer(words, merges)
    found = asked(model, "is a cat", answer="a cat", method="logits", evidence=False)
    assert model.tokenizer.convert_ids_to_tokens([one.id for one in found.tokens]) == ["▁a", "▁cat"]
    assert found.text == "a cat"


def test_an_answer_comes_token_by_token_and_stops_when_told(llava: VisionLanguageModel) -> None:
    stopped: list[int] = []
    steps = answer_in_steps(
        llava, PHOTO, QUESTION, AnswerOptions(max_tokens=9), stop=lambda: len(stopped) == 3
    )
    while True:
        try:
            progress = next(steps)
        except StopIteration as end:
            found = end.value
            break
        assert progress.token is not None
        assert progress.token.map is not None
        stopped.append(progress.number)
    assert stopped == [0, 1, 2]
    assert (len(found.tokens), found.finished) == (3, False)


def test_two_answers_may_take_turns() -> None:
    """Qwen-VL keeps the offset of positions behind a photo in the model itself."""
    model = VisionLanguageModel(*family("qwen2-vl"))
    options = AnswerOptions(max_tokens=6, evidence=False)
    other = PHOTO[:48, :64].copy()
    alone = [explain_answer(model, photo, QUESTION, options) for photo in (PHOTO, other)]
    turns = [answer_in_steps(model, photo, QUESTION, options) for photo in (PHOTO, other)]
    ended: dict[int, ExplainedAnswer] = {}
    while len(ended) < 2:
        for number, steps in enumerate(turns):
            if number not in ended:
                try:
                    next(steps)
                except StopIteration as stop:
                    ended[number] = stop.value
    for number, expected in enumerate(alone):
        assert [one.id for one in ended[number].tokens] == [one.id for one in expected.tokens]


@pytest.mark.parametrize(("photos", "runs"), [(0, [2, 4, 5]), (2, [2, 2, 3])])
def test_a_photo_is_encoded_once(photos: int, runs: list[int]) -> None:
    """For the answer and its maps, once for the blurred photo; of photos that are kept, not again
    for further questions."""
    model, processor = family("llava")
    explained = VisionLanguageModel(model, processor, photos=photos)
    seen: list[int] = []
    model.base_model.vision_tower.register_forward_hook(lambda *given: seen.append(1))
    counted, answers = [], []
    for question in (QUESTION, "what is red ?"):
        options = AnswerOptions(max_tokens=3, method="gradcam")
        answers.append(explain_answer(explained, PHOTO, question, options))
        counted.append(len(seen))
    explain_answer(explained, PHOTO[::-1], "a", AnswerOptions(max_tokens=1, evidence=False))
    counted.append(len(seen))
    assert counted == runs
    alone = explain_answer(
        VisionLanguageModel(*family("llava")), PHOTO, "what is red ?", AnswerOptions(max_tokens=3)
    )
    assert [one.id for one in answers[1].tokens] == [one.id for one in alone.tokens]
    for mine, theirs in zip(answers[1].tokens, alone.tokens, strict=True):
        assert mine.evidence == pytest.approx(theirs.evidence, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_the_model_is_left_as_it_was(
    llava: VisionLanguageModel, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cam.answers.passes.FOUND", 2)
    module = llava.model
    before = module.config._attn_implementation

    def hooks() -> int:
        return sum(
            len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules()
        )

    asked(
        llava, answer="a cat", method=method, word="cat"
    )  # transformers adds hooks of its own, once
    hooked = hooks()
    asked(llava, answer="a cat", method=method, word="cat")
    assert (hooks(), module.config._attn_implementation) == (hooked, before)
    read, module.forward = module.forward, lambda **given: 1 / 0
    try:
        with pytest.raises(ZeroDivisionError):
            asked(llava, answer="a cat", method=method, word="cat")
    finally:
        module.forward = read
    assert (hooks(), module.config._attn_implementation) == (hooked, before)


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("", "the question is empty"),
        (" \n ", "the question is empty"),
        ("what \x00 is", "has control characters"),
        ("what \ud800 is", "has control characters"),
        ("what is <image>", "'<image>', which is a special token"),
        ("what is <eos>", "'<eos>', which is a special token"),
        ("what is a dragon", "does not know 'dragon'"),
        ("what " * 4001, "has 20004 characters; it may have 20000"),
        ("a " * 5000, "tokens; the model reads at most 4096"),
    ],
)
def test_questions_that_are_refused(
    llava: VisionLanguageModel, question: str, sentence: str
) -> None:
    with pytest.raises(InvalidPrompt, match=sentence):
        explain_answer(llava, PHOTO, question)


def test_spaces_and_joiners_of_any_script_are_text(llava: VisionLanguageModel) -> None:
    plain = asked(llava, "what is red", max_tokens=2)
    for question in ("what\u00a0is red", "what is\r\nred", "what\tis\u2009red"):
        assert asked(llava, question, max_tokens=2).text == plain.text
    with pytest.raises(InvalidPrompt, match="does not know 'می"):  # joined by U+200C
        asked(llava, "می‌بینی what")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"method": "scorecam"}, "method is 'scorecam'; it can be tam, logits"),
        ({"method": "eagle"}, "eagle explains one word or phrase of the answer; word names none"),
        ({"evaluate": True}, "evaluate scores one word or phrase"),
        ({"region": np.ones((90, 150), bool)}, "it needs evaluate, and a pixel"),
        (
            {"word": "a", "evaluate": True, "region": np.zeros((90, 150), bool)},
            "it needs evaluate, and a pixel",
        ),
        (
            {"word": "a", "evaluate": True, "region": np.ones((9, 9), bool)},
            r"the region has \(9, 9\) pixels; the photo has \(90, 150\)",
        ),
        ({"max_tokens": 0}, "max_tokens is 0; it can be 1 to 512"),
        ({"alternatives": 21}, "alternatives is 21; it can be 0 to 20"),
        ({"answer": " "}, "the answer is empty; it is a text such as 'a red circle'"),
        ({"answer": "a dragon"}, "does not know 'dragon'"),
        ({"answer": "a " * 4090}, "tokens; the model reads at most 4096"),
    ],
)
def test_options_that_are_refused(
    llava: VisionLanguageModel, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(CamError, match=sentence):
        asked(llava, **options)


def test_an_answer_that_takes_too_much_memory_is_refused_before(
    llava: VisionLanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asked(llava, max_tokens=4)
    # Keys and values of three blocks and two heads of eight numbers, and 32 of the hidden state.
    assert found.memory == (found.prompt_tokens + 4) * (2 * 3 * 2 * 8 * 4 + 32 * 4)
    tokens = found.prompt_tokens + 4
    # For gradients from the second block on: 2 blocks with 8 · 32 + 4 · 64 numbers of each token.
    graded = asked(llava, max_tokens=4, method="gradcam")
    assert graded.memory == found.memory + 4 * 2 * tokens * (8 * 32 + 4 * 64)
    # The weights of one block with four heads, three times: scores, their softmax, its gradient.
    attended = asked(llava, max_tokens=4, method="attention")
    assert attended.memory == found.memory + 4 * 3 * 4 * tokens**2
    legrad = asked(llava, max_tokens=4, method="legrad")
    assert legrad.memory == attended.memory + 4 * tokens * (8 * 32 + 4 * 64)
    chefer = asked(llava, max_tokens=4, method="chefer")
    assert chefer.memory == found.memory + 3 * (legrad.memory - found.memory)
    # Two blocks with two heads of eight numbers, and two with one of sixteen.
    sizes = asked(VisionLanguageModel(*family("gemma4-large")), max_tokens=4)
    numbers = 2 * (2 * 2 * 8 + 2 * 16)
    assert sizes.memory == (sizes.prompt_tokens + 4) * (numbers * 4 + 32 * 4)
    monkeypatch.setattr("cam.answers.explain.MAX_BYTES", found.memory - 1)
    with pytest.raises(InvalidOption, match=r"would take [\d,]+ bytes; at most"):
        asked(llava, max_tokens=4)


class NoImages(torch.nn.Module):
    """A language model."""

    class Config:
        image_token_id = None

    config = Config()


def test_other_models_are_refused() -> None:
    with pytest.raises(ModelError, match="the config of a NoImages names no image token"):
        VisionLanguageModel(NoImages(), None)
    model, processor = family("llava")
    with pytest.raises(ModelError, match="has no tokenizer"):
        VisionLanguageModel(model, processor.image_processor)
    model.lm_head = torch.nn.Identity()
    with pytest.raises(ModelError, match="no linear output embedding"):
        VisionLanguageModel(model, processor)
    model, processor = family("llava")
    processor.chat_template = "question : {{ messages[0].content[1].text }}"
    with pytest.raises(ModelError, match="Found total 0 <image> tokens and 1 images"):
        VisionLanguageModel(model, processor).ask(PHOTO, "a")


def test_logits_that_are_not_of_the_last_hidden_states_are_refused() -> None:
    model, processor = family("llava")
    model.lm_head.register_forward_hook(lambda module, given, logits: logits.flip(-1))
    explained = VisionLanguageModel(model, processor)
    head, model.lm_head.forward = model.lm_head.forward, torch.zeros_like
    model.lm_head.forward = lambda states: head(states.flip(-1))
    explained.head = torch.nn.Linear(32, 3)
    explained.head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    explained.head.register_parameter("bias", None)
    with pytest.raises(ModelError, match="are not its output embedding times"):
        explained.check()


def test_photos_of_any_size(llava: VisionLanguageModel) -> None:
    for width, height in ((16, 16), (400, 17), (20, 300)):
        photo = cv2.resize(PHOTO, (width, height)).astype(np.uint8)
        found = explain_answer(llava, photo, "a", AnswerOptions(max_tokens=1))
        assert found.tokens[0].map is not None
    with pytest.raises(InvalidImages, match="15 × 20 pixels; a question needs 16 or more"):
        explain_answer(llava, np.zeros((20, 15, 3), np.uint8), "a")


def test_a_photo_that_the_processor_refuses_is_told() -> None:
    model = VisionLanguageModel(*family("qwen2-vl"))
    long = np.zeros((16, 16 * 300, 3), np.uint8)
    with pytest.raises(ModelError, match=r"takes no photo of 4800 × 16 pixels .* aspect ratio"):
        explain_answer(model, long, "a")


def test_the_tokenizer_of_the_tests_knows_its_words() -> None:
    assert tokenizer()("what is in the picture ?")["input_ids"]
