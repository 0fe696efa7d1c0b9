"""Attention methods: by hand on one head, and on what three libraries build."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from cam import ClassTarget, PromptClassifier, explain
from cam.errors import MethodUnsuited
from cam.methods.attention import attention_problems, lists_of_blocks
from cam.methods.attention_hooks import attending
from tests.zoo.convolutional import small
from tests.zoo.image_text import image_text_model, tokenizer
from tests.zoo.parts import Net, hook_count, images, scored
from tests.zoo.transformers import (
    mixing,
    of_four,
    of_hugging_face,
    of_timm,
    of_timm_distilled,
    of_timm_pooled,
    vit,
)

METHODS = ("rollout", "chefer", "agcam", "legrad")


FIRST = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])
SECOND = torch.tensor([[0, 0.5, 0.5, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0.25, 0.25, 0.25, 0.25]])


def tiny(*, mean: bool = False) -> Net:
    return of_four(mixing(FIRST.clamp(min=1e-12)), mixing(SECOND.clamp(min=1e-12)), mean=mean)


PHOTO = torch.tensor([[[[1.0, 2], [3, 4]]]])


def mapped(method: str, model: nn.Module, target: int = 0) -> np.ndarray:
    (found,) = explain(model, PHOTO, target=target, method=method)
    assert found.layer == "input"
    return found.map


def test_rollout_by_hand() -> None:
    """r (½I + ½A_2)(½I + ½A_1): the first row of the second is (2, 1, 1, 0) / 4."""
    second = np.array([2, 1, 1, 0]) / 4
    first = (np.eye(4) + FIRST.numpy()) / 2
    np.testing.assert_allclose(mapped("rollout", tiny()).ravel(), second @ first, atol=1e-6)
    rows = (np.eye(4) + SECOND.numpy()) / 2
    expected = rows.mean(0) @ first
    np.testing.assert_allclose(mapped("rollout", tiny(mean=True)).ravel(), expected, atol=1e-6)


def test_chefer_by_hand() -> None:
    """∂y/∂A_2 is 2 × the tokens after the first block, (2.5, 1.5, 3, 4), in row 0 and 0 below;
    ∂y/∂A_1 = 2 A_2[0]ᵀ xᵀ: rows 1 and 2 are x. R = (I + Ā_2)(I + Ā_1), row 0, less I."""
    after = FIRST.numpy() @ [1, 2, 3, 4]
    np.testing.assert_allclose(after, [2.5, 1.5, 3, 4])
    two, one = np.zeros((4, 4)), np.zeros((4, 4))
    two[0] = 2 * after * SECOND.numpy()[0]
    one[1:3] = np.array([1, 2, 3, 4]) * FIRST.numpy()[1:3]
    expected = ((np.eye(4) + two) @ (np.eye(4) + one) - np.eye(4))[0]
    np.testing.assert_allclose(mapped("chefer", tiny()).ravel(), expected, rtol=1e-5, atol=1e-6)
    # What lowers the score: every gradient is negative, so nothing is left.
    assert not mapped("chefer", tiny(), target=1).any()


def sigmoid(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-numbers)))


def test_agcam_by_hand() -> None:
    """The scores are log A, so their sigmoid is A / (1 + A). ∂y/∂A as above: in row 0 2 × the
    tokens of A_2, and of A_1 nothing, for A_2 reads rows 1 and 2 alone. Where the head reads the
    mean, r is ¼ everywhere: ∂y/∂A_2 has ¼ of those tokens in every row; ∂y/∂A_1 is
    2 mean_rows(A_2)ᵀ xᵀ."""
    after, x = FIRST.numpy() @ [1, 2, 3, 4], np.array([1.0, 2, 3, 4])
    gates = [each.numpy() / (1 + each.numpy()) for each in (FIRST, SECOND)]
    np.testing.assert_allclose(
        mapped("agcam", tiny()).ravel(), 2 * after * gates[1][0], rtol=1e-5, atol=1e-9
    )
    slopes = 2 * np.outer(SECOND.numpy().mean(0), x), np.tile(2 * after / 4, (4, 1))
    expected = sum((gate * slope).mean(0) for gate, slope in zip(gates, slopes, strict=True))
    np.testing.assert_allclose(mapped("agcam", tiny(mean=True)).ravel(), expected, rtol=1e-5)
    # What lowers the score: every gradient is negative, so nothing is left.
    assert not mapped("agcam", tiny(), target=1).any()


def test_legrad_by_hand() -> None:
    """Layer 2: ∂y/∂A_2 as above, over 4 rows. Layer 1, read at once: 2 x in row 0, over 4 rows."""
    after = FIRST.numpy() @ [1, 2, 3, 4]
    expected = (2 * after / 4 + 2 * np.array([1, 2, 3, 4]) / 4) / 2
    np.testing.assert_allclose(mapped("legrad", tiny()).ravel(), expected, rtol=1e-5)


def two_heads(weight: float) -> Net:
    """One block of two heads, whose first rows are (1, 1, 1, 1) / 4 and (1, 0, 0, 0), added with
    the weights 1 and w. y = 2 × token 0: ∂y/∂A_h is 2 w_h x in row 0 and 0 below."""
    heads = torch.stack([torch.full((4, 4), 0.25), torch.eye(4).clamp(min=1e-12)])
    return of_four(mixing(heads, (1.0, weight)))


def test_rollout_takes_the_mean_of_two_heads_by_hand() -> None:
    """(I + mean_h A_h) / 2, row 0: ((1, 0, 0, 0) + (5, 1, 1, 1) / 8) / 2; of the maximum of the
    heads it would be (8, 1, 1, 1) / 11."""
    expected = np.array([13, 1, 1, 1]) / 16
    np.testing.assert_allclose(mapped("rollout", two_heads(3)).ravel(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("weight", "expected"),
    # Of head 1, 2 x / 4; of head 2, 2 w x in the first place.
    [(3.0, [(0.5 + 6) / 2, 1 / 2, 1.5 / 2, 2 / 2]), (-3.0, [0.5 / 2, 1 / 2, 1.5 / 2, 2 / 2])],
)
def test_chefer_takes_the_mean_of_two_rectified_heads_by_hand(
    weight: float, expected: list[float]
) -> None:
    np.testing.assert_allclose(mapped("chefer", two_heads(weight)).ravel(), expected, rtol=1e-5)


@pytest.mark.parametrize("weight", [3.0, -3.0])
def test_agcam_adds_two_rectified_heads_by_hand(weight: float) -> None:
    """Of head 1, 2 x ¼ / (1 + ¼); of head 2, 2 w x ½ in the first place."""
    expected = np.array([1.0, 2, 3, 4]) * 2 / 5 + [max(weight, 0), 0, 0, 0]
    np.testing.assert_allclose(mapped("agcam", two_heads(weight)).ravel(), expected, rtol=1e-5)


@pytest.mark.parametrize(("weight", "factor"), [(3.0, (2 + 6) / 2), (-3.0, 2 / 2)])
def test_legrad_takes_the_mean_of_two_rectified_heads_by_hand(weight: float, factor: float) -> None:
    """Row 0 is 2 x and 2 w x, less nothing where w < 0; then the mean over four rows."""
    expected = factor * np.array([1, 2, 3, 4]) / 4
    np.testing.assert_allclose(mapped("legrad", two_heads(weight)).ravel(), expected, rtol=1e-5)


def class_token(*, heads: bool) -> Net:
    """2 × 2 pixels are four tokens, their first two channels, behind a class token (1, 0), which
    reads them by one attention with q = k = v. y = 2 o_1 − o_2, o what it reads, and −y."""

    def score(x: Tensor, tokens: nn.Module) -> Tensor:
        first = torch.tensor([1.0, 0.0]).expand(len(x), 1, 2)
        all_ = tokens(torch.cat([first, x[:, :2].flatten(2).transpose(1, 2)], 1))
        all_ = all_[:, None] if heads else all_
        read = nn.functional.scaled_dot_product_attention(all_, all_, all_)[..., 0, :]
        return read.flatten(0, -2) @ torch.tensor([2.0, -1.0])

    return scored(score, other=-1, tokens=nn.Identity())


@pytest.mark.parametrize("heads", [True, False])
def test_gradeclip_by_hand(heads: bool) -> None:
    """v = (3, 4), (4, 3), (0, 1), (1, 0): 2 v_1 − v_2 = 2, 5, −1, 2, and the cosines with (1, 0)
    are 3/5, 4/5, 0, 1."""
    photo = torch.tensor([[3.0, 4, 0, 1], [4, 3, 1, 0], [0, 0, 0, 0]]).reshape(1, 3, 2, 2)
    one, other = explain(
        class_token(heads=heads), photo, target=[0, 1], method="gradeclip", signed=True
    )
    np.testing.assert_allclose(one.map.ravel(), [1.2, 4, 0, 2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(other.map, -one.map)
    (least,) = explain(class_token(heads=heads), photo, target=1, method="gradeclip")
    assert not least.map.any()


def of_transformers_clip() -> nn.Module:
    return PromptClassifier(image_text_model(), tokenizer(), ["a cat", "a dog", "a", "the dog"])


@pytest.mark.parametrize(
    ("build", "block", "reading", "projection"),
    [
        (of_timm, "blocks.2.attn", ("qkv",), "proj"),
        (
            of_transformers_clip,
            "encoders.vision_model.encoder.layers.2.self_attn",
            ("q_proj", "k_proj", "v_proj"),
            "out_proj",
        ),
    ],
)
def test_gradeclip_restated(
    build: Callable[[], nn.Module], block: str, reading: tuple[str, ...], projection: str
) -> None:
    """With the gradient at what the projection behind the last attention is given."""
    torch.manual_seed(0)
    model, x = build().eval(), images(1, size=64)
    (found,) = explain(model, x, target=3, method="gradeclip", signed=True)
    attention, kept = model.get_submodule(block), dict[str, Tensor]()
    for name in reading:
        attention.get_submodule(name).register_forward_hook(
            lambda module, given, output, name=name: kept.__setitem__(name, output)
        )
    attention.get_submodule(projection).register_forward_pre_hook(
        lambda module, given: kept.__setitem__("read", given[0])
    )
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(model(x)[0, 3], kept["read"])
    q, k, v = torch.cat([kept[name] for name in reading], -1)[0].detach().chunk(3, -1)
    likeness = nn.functional.cosine_similarity(q[:1], k[1:])
    loosened = (likeness - likeness.min()) / (likeness.max() - likeness.min())
    expected = (gradient[0, :1] * v[1:] * loosened[:, None]).sum(-1).reshape(4, 4)
    assert expected.min() < 0 < expected.max()
    np.testing.assert_allclose(found.map, expected.numpy(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (of_timm_pooled, "scores read 16 tokens of the last attention"),
        (of_timm_distilled, "scores read 2 tokens of the last attention"),
        (tiny, "this model's is a softmax and a product|scores read a patch of the last"),
        (small, "it needs a transformer"),
    ],
)
def test_gradeclip_needs_a_class_token(build: Callable[[], nn.Module], words: str) -> None:
    torch.manual_seed(0)
    model = build().eval()
    x = PHOTO if build is tiny else images(1, size=64)
    with pytest.raises(MethodUnsuited, match=words) as error:
        explain(model, x, method="gradeclip")
    assert attention_problems(model, x)["gradeclip"] == str(error.value)


@cache
def built(build: Callable[[], nn.Module]) -> nn.Module:
    """One model for all methods: where its tokens lie is found once."""
    torch.manual_seed(0)
    return build().eval()


BUILDS = (of_timm, of_timm_distilled, of_timm_pooled, vit, of_hugging_face)


@pytest.mark.parametrize("build", BUILDS)
def test_the_matrices_are_the_models_own(build: Callable[[], nn.Module]) -> None:
    """Computed step by step, the model says what it says without."""
    torch.manual_seed(0)
    model = build().eval()
    x = images(1, size=64)
    with torch.no_grad():
        expected = logits(model(x))
    with attending() as matrices:
        found = logits(model(x))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert len(matrices) == 3
    for matrix in matrices:
        torch.testing.assert_close(matrix.sum(-1), torch.ones_like(matrix[..., 0]))
        assert matrix.std() > 0


@pytest.mark.parametrize("build", [of_timm, vit])
def test_agcam_equals_a_statement_of_its_own(build: Callable[[], nn.Module]) -> None:
    """With hooks on the projections to queries, keys and values, and the softmax written out."""
    model, x = built(build), images(1, size=64)
    attentions = [
        module
        for module in model.modules()
        if isinstance(module, timm.layers.Attention | nn.MultiheadAttention)
    ]
    assert len(attentions) == 3
    kept: list[tuple[Tensor, Tensor]] = []

    def forward(module: Any, tokens: Tensor, *others: Any, **options: Any) -> Any:
        b, n, width = tokens.shape
        of_torch = isinstance(module, nn.MultiheadAttention)
        weight, bias = (
            (module.in_proj_weight, module.in_proj_bias)
            if of_torch
            else (module.qkv.weight, module.qkv.bias)
        )
        joined = nn.functional.linear(tokens, weight, bias)
        q, k, v = joined.view(b, n, 3, module.num_heads, -1).permute(2, 0, 3, 1, 4)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        matrix = scores.softmax(-1).detach().requires_grad_(not kept) if not kept else None
        matrix = scores.softmax(-1) if matrix is None else matrix
        kept.append((scores, matrix))
        mixed = torch.einsum("bhqk,bhkd->bqhd", matrix, v).reshape(b, n, width)
        return (module.out_proj(mixed), None) if of_torch else module.proj(mixed)

    with pytest.MonkeyPatch.context() as patch:
        for module in attentions:
            patch.setattr(module, "forward", partial(forward, module))
        score = logits(model(x))[0, 3]
    gradients = torch.autograd.grad(score, [matrix for _, matrix in kept])
    expected = torch.zeros(4, 4)
    for (scores, _), gradient in zip(kept, gradients, strict=True):
        gated = gradient.clamp(min=0) / (1 + torch.exp(-scores.detach()))
        expected += gated[0, :, 0, 1:].sum(0).view(4, 4)
    (found,) = explain(model, x, target=3, method="agcam")
    np.testing.assert_allclose(found.map, expected, rtol=1e-3, atol=1e-5 * float(expected.max()))


def logits(output: object) -> Tensor:
    found = getattr(output, "logits", output)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("build", BUILDS)
def test_every_librarys_transformer(build: Callable[[], nn.Module], method: str) -> None:
    model = built(build)
    x = images(2, size=64)
    one, other = explain(model, x, target=3, method=method)
    assert one.map.shape == (4, 4)
    assert np.ptp(one.map) > 0
    assert not np.allclose(one.map, other.map)
    (alone,) = explain(model, x[1:], target=3, method=method)
    np.testing.assert_allclose(other.map, alone.map, rtol=1e-3, atol=1e-7)
    (third,) = explain(model, x[:1], target=5, method=method)
    assert np.allclose(third.map, one.map) == (method == "rollout")
    assert hook_count(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_what_has_no_such_attention_is_refused(method: str) -> None:
    for model, words in (
        (small(), "it needs a transformer"),
        (built(torchvision.models.swin_t), "attention joins tokens within windows"),
    ):
        with pytest.raises(MethodUnsuited, match=words):
            explain(model.eval(), images(1, size=64), method=method)
        assert hook_count(model) == 0


def test_the_grad_mode_is_the_callers_again_after_an_exception() -> None:
    def failing() -> None:
        with attending():
            assert not torch.is_grad_enabled()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert torch.is_grad_enabled()
    with torch.no_grad():
        with attending():
            pass
        assert not torch.is_grad_enabled()


def test_rollout_knows_no_class_also_where_targets_cancel() -> None:
    plain = mapped("rollout", tiny())
    assert plain.max() > 0
    both = [ClassTarget(1), ClassTarget(1, against=True)]
    for found in explain(tiny(), PHOTO, target=both, method="rollout"):
        np.testing.assert_array_equal(found.map, plain)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", METHODS)
def test_the_callers_mode_changes_nothing(method: str, mode: Callable[[], Any]) -> None:
    plain = mapped(method, tiny())
    with mode():
        np.testing.assert_array_equal(mapped(method, tiny()), plain)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def listed(**lists: list[nn.Module]) -> Net:
    return Net(len, **{name: nn.ModuleList(modules) for name, modules in lists.items()})


def stack() -> Net:
    """No list, whatever its children are."""
    return Net(len, first=block(), second=block(), third=block())


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (listed(a=[block()] * 2, b=[block(), block(), block()]), ["b.0", "b.1", "b.2"]),
        (listed(a=[block(), block()], b=[block(), block()]), ["a.0", "a.1"]),
        (listed(a=[block(), block()], b=[nn.ReLU(), nn.ReLU(), nn.ReLU()]), ["a.0", "a.1"]),
        (listed(a=[block(), block()], b=[block(), nn.Sequential(), block()]), ["a.0", "a.1"]),
        (listed(a=[block(), block()], b=[block(), stack(), block()]), ["a.0", "a.1"]),
        (nn.Sequential(stack(), stack()), ["0", "1"]),
        (nn.ModuleDict({"a": block(), "b": block(), "c": block()}), []),
        (nn.Linear(2, 2), []),
    ],
)
def test_the_blocks_are_the_longest_list_of_equal_modules(
    model: nn.Module, expected: list[str]
) -> None:
    assert (lists_of_blocks(model) or [[]])[0] == expected
