"""Which attention is followed, and which is refused for what it is, on one small network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import explain
from cam.drawing.placement import resize
from cam.errors import MethodUnsuited
from cam.methods.attention import attention_problems
from tests.zoo.parts import images, order
from tests.zoo.transformers import Attend, attending

METHODS = ("rollout", "chefer", "agcam", "legrad")


def weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) / 4).softmax(-1)


def split(values: Tensor, dim: int, sizes: tuple[int, ...]) -> Tensor:
    found: Tensor = values.unflatten(dim, sizes)  # type: ignore[no-untyped-call]
    return found


def fused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, **options)


def biased(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / 4
    return nn.functional.dropout((scores + BIAS).softmax(-1), 0.5, training=False) @ v


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid, bhjd -> bhij", q, k) / 4
    return torch.einsum("bhij, bjhd -> bhid", scores.softmax(-1), v.transpose(1, 2))


def one_head_at_a_time(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As one head of 32 dimensions that needs no axis of its own, so not the same numbers."""
    q, k, v = (each.transpose(1, 2).flatten(2) for each in (q, k, v))
    return split(fused(q, k, v), -1, (2, 16)).transpose(1, 2)


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (each.transpose(1, 2).flatten(2)[:, None] for each in (q, k, v))
    return split(fused(q, k, v)[:, 0], -1, (2, 16)).transpose(1, 2)


BIAS = torch.randn(16, 16, generator=torch.Generator().manual_seed(3))
SAME: dict[str, tuple[Attend, Attend]] = {
    "softmax @ v": (lambda q, k, v: weights(q, k) @ v, fused),
    "vᵀ @ softmaxᵀ": (
        lambda q, k, v: (v.mT @ weights(q, k).transpose(-2, -1)).mT.contiguous(),
        fused,
    ),
    "einsum": (by_einsum, fused),
    "weights in another precision": (
        lambda q, k, v: torch.matmul(weights(q, k).to(torch.float64).to(v.dtype), v),
        fused,
    ),
    "bias": (lambda q, k, v: fused(q, k, v, attn_mask=BIAS), biased),
    "heads that share a key": (
        lambda q, k, v: fused(q, k[:, :1], v[:, :1], enable_gqa=True),
        lambda q, k, v: fused(q, k[:, [0, 0]], v[:, [0, 0]]),
    ),
    "a mask that hides nothing": (
        lambda q, k, v: fused(q, k, v, attn_mask=torch.ones(16, 16, dtype=torch.bool)),
        fused,
    ),
    "one head": (one_head_at_a_time, one_head),
}


@pytest.mark.parametrize("method", ["rollout", "chefer", "agcam"])
@pytest.mark.parametrize("name", SAME)
def test_the_same_attention_written_otherwise_gives_the_same_map(name: str, method: str) -> None:
    x = images(1, size=16)
    models = [attending(attend) for attend in SAME[name]]
    # The global generator is every thread's: what another test left running may have drawn from it.
    models[1].load_state_dict(models[0].state_dict())
    torch.testing.assert_close(models[0](x), models[1](x))
    (found,), (expected,) = (explain(model, x, target=1, method=method) for model in models)
    assert np.ptp(expected.map) > 0
    np.testing.assert_allclose(found.map, expected.map, rtol=1e-4, atol=1e-7)


def test_agcam_needs_the_scores_of_its_attention() -> None:
    """Heads that are mixed after the softmax have rows that sum to 1, and no scores."""

    def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = weights(q, k)
        return (0.75 * own + own.flip(1) / 4) @ v

    model, x = attending(mixed), images(1, size=16)
    assert np.ptp(explain(model, x, target=1, method="chefer")[0].map) > 0
    with pytest.raises(MethodUnsuited, match="this model changes it afterwards") as error:
        explain(model, x, target=1, method="agcam")
    assert attention_problems(model, x)["agcam"] == str(error.value)


def test_agcam_finds_the_scores_of_a_softmax_over_queries() -> None:
    """Keys first: the columns of the scores are the queries."""

    def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (k @ q.transpose(-2, -1) / 4).softmax(-2).transpose(-2, -1) @ v

    models = [attending(attend) for attend in (turned, fused)]
    models[1].load_state_dict(models[0].state_dict())
    x = images(1, size=16)
    (found,), (expected,) = (explain(model, x, target=1, method="agcam") for model in models)
    np.testing.assert_allclose(found.map, expected.map, rtol=1e-4, atol=1e-7)


def windows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Rows of four tokens, as a fifth axis."""
    return fused(*(split(each, 2, (4, 4)) for each in (q, k, v))).flatten(2, 3)


def side_by_side(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(q, k, v) - 0.5 * fused(k, q, v)


def in_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(*(each.flatten(0, 1) for each in (q, k, v)))[None]


REFUSED: dict[str, tuple[Attend, str]] = {
    "channels": (
        lambda q, k, v: fused(*(each.mT for each in (q, k, v))).mT,
        "joins channels, not patches",
    ),
    "channels by softmax": (
        lambda q, k, v: (weights(q.mT, k.mT) @ v.mT).mT,
        "joins channels, not patches",
    ),
    "windows": (windows, "joins tokens within windows"),
    "batch": (in_the_batch, "windows or its heads in the batch axis"),
    "pooled keys": (
        lambda q, k, v: fused(q, k[:, :, ::4], v[:, :, ::4]),
        "has 16 queries and 4 keys",
    ),
    "class attention": (
        lambda q, k, v: v + fused(q[:, :, :1], k, v),
        "has one query for 16 keys",
    ),
    "mask": (
        lambda q, k, v: fused(q, k, v, attn_mask=torch.ones(16, 16, dtype=torch.bool).tril()),
        "hides tokens from each other by a mask",
    ),
    "mask of numbers": (
        lambda q, k, v: fused(q, k, v, attn_mask=torch.full((16, 16), -torch.inf).triu(1)),
        "hides tokens",
    ),
    "causal": (lambda q, k, v: fused(q, k, v, is_causal=True), "hides tokens"),
    "mask before the softmax": (
        lambda q, k, v: (
            (q @ k.mT).masked_fill(torch.ones(16, 16).triu(1) > 0, -1e9).softmax(-1) @ v
        ),
        "hides tokens",
    ),
    "side by side": (side_by_side, "has attentions side by side"),
    "talking heads": (
        lambda q, k, v: (2 * weights(q, k) - weights(q, k).flip(1) / 2) @ v,
        "changed after its softmax",
    ),
    "none": (lambda q, k, v: torch.relu(q) @ (torch.relu(k).mT @ v), "no softmax self-attention"),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", REFUSED)
def test_other_attention_is_refused_for_what_it_is(name: str, method: str) -> None:
    attend, words = REFUSED[name]
    model = attending(attend)
    with pytest.raises(MethodUnsuited, match=words):
        explain(model, images(1, size=16), target=1, method=method)
    assert torch.is_grad_enabled()


def test_two_stages_of_tokens_are_refused() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        fine = fused(q, k, v)
        coarse = fused(*(split(each, 2, (8, 2)).mean(3) for each in (fine, k, v)))
        return coarse.repeat_interleave(2, 2)

    with pytest.raises(MethodUnsuited, match="joins 16 tokens in one layer and 8 in another"):
        explain(attending(attend), images(1, size=16), target=1, method="rollout")


def with_token(at: int) -> Callable[[Tensor], Tensor]:
    """Puts a token of ones before the patch `at`."""
    return lambda tokens: torch.cat(
        [tokens[:, :at], torch.ones_like(tokens[:, :1]), tokens[:, at:]], 1
    )


def attend_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fused(q, k, v)


@pytest.mark.parametrize(
    ("arranged", "transposed"),
    [
        (lambda tokens: split(tokens, 1, (4, 4)).transpose(1, 2).flatten(1, 2), True),
        (lambda tokens: tokens.flip(1), False),
    ],
    ids=["by columns", "backwards"],
)
def test_tokens_that_lie_turned(arranged: Callable[[Tensor], Tensor], transposed: bool) -> None:
    """The map lies on the image as that of the tokens row by row does."""
    x = images(1, size=16)
    (wanted,) = explain(attending(attend_all), x, target=1, method="rollout")
    (found,) = explain(attending(attend_all, arranged), x, target=1, method="rollout")
    assert found.placement
    assert found.placement.transposed == transposed
    assert found.placement.mirrored == found.placement.upside_down == (not transposed)
    np.testing.assert_allclose(found.map, resize(wanted.map, 16, 16), rtol=1e-4, atol=1e-6)


def test_tokens_that_do_not_lie_row_by_row_are_refused() -> None:
    model = attending(attend_all, lambda tokens: tokens[:, order(16)])
    with pytest.raises(MethodUnsuited, match="lie on the photo row by row"):
        explain(model, images(1, size=16), target=1, method="rollout")


@pytest.mark.parametrize("at", [0, 8, 16])
def test_a_token_that_is_no_patch_is_left_out_wherever_it_stands(at: int) -> None:
    """The attention knows no positions: the map is the same."""
    x = images(1, size=16)
    first, other = (attending(attend_all, with_token(each)) for each in (0, at))
    (expected,) = explain(first, x, target=1, method="chefer")
    (found,) = explain(other, x, target=1, method="chefer")
    assert found.map.shape == (4, 4)
    assert np.ptp(expected.map) > 0
    np.testing.assert_allclose(found.map, expected.map, rtol=1e-4, atol=1e-7)
