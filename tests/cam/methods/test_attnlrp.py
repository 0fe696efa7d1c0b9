"""AttnLRP: beside the rules as the papers state them, beside zennit's rule γ, what it refuses, and
the model as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional
from zennit.rules import Gamma

from cam import ClassTarget, explain
from cam.errors import CamError, MethodUnsuited
from cam.methods.attnlrp import CONVOLUTION, LINEAR, require_rules
from cam.methods.relevance_rules import RelevanceRules
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, hook_count, images
from tests.zoo.transformers import (
    Attention,
    of_hugging_face,
    of_timm,
    one_block,
    softmax_attention,
    vit,
)


def fused(x: Tensor, q: nn.Module, k: nn.Module, v: nn.Module, out: nn.Module) -> Any:
    query, key, value = (each(x)[:, None] for each in (q, k, v))
    read = functional.scaled_dot_product_attention(query, value=value, key=key)
    return out(read[:, 0])


def joined(x: Tensor, joined: nn.MultiheadAttention, **parts: nn.Linear) -> Any:
    """With torch's own module, in which no linear layer is a function of its own."""
    q, k, v, out = (parts[name] for name in ("q", "k", "v", "out"))
    joined.in_proj_weight.data.copy_(torch.cat([q.weight, k.weight, v.weight]))
    joined.in_proj_bias.data.copy_(torch.cat([q.bias, k.bias, v.bias]))
    joined.out_proj.load_state_dict(out.state_dict())
    return joined(x, x, x, need_weights=False)[0]


def made(attention: Attention = softmax_attention, *, bias: bool = True) -> Net:
    more = {"joined": nn.MultiheadAttention(6, 1, batch_first=True)} if attention is joined else {}
    model = one_block(attention, bias=bias, **more)
    torch.manual_seed(5)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def linear(relevance: Tensor, x: Tensor, layer: nn.Module, gamma: float) -> Tensor:
    """R_i = Σ_j c_ij / (Σ_i c_ij + b_j) R_j for c_ij = x_i w_ij, 1 + γ times if it has the sign of
    the output j, and so the bias."""
    weight = layer.get_parameter("weight").double()
    bias = getattr(layer, "bias", None)
    b = torch.zeros(len(weight)) if bias is None else bias
    outputs = x @ weight.T + b
    products = x[:, None] * weight
    grown = products * (1 + gamma * (products * outputs[..., None] > 0))
    total = grown.sum(-1) + b * (1 + gamma * (b * outputs > 0))
    return (grown * (relevance / total)[..., None]).sum(1)


def normed(relevance: Tensor, x: Tensor, layer: nn.LayerNorm) -> Tensor:
    """ε through the subtraction of the mean; what divides is a constant."""
    deviation = (x.var(1, unbiased=False, keepdim=True) + layer.eps).sqrt()
    centre = torch.eye(6).double() - 1 / 6
    products = x[:, None] * centre * layer.weight[:, None].double() / deviation[..., None]
    outputs: Tensor = layer(x.float()).double()
    return (products * (relevance / outputs)[..., None]).sum(1)


def attended(relevance: Tensor, x: Tensor, model: Net, gamma: float) -> Tensor:
    """Half of the output's relevance goes to the values, half to the weights; through the softmax
    R_s = s (R − w ΣR), and half of that each to queries and keys."""
    with torch.no_grad():
        q, k, v = (each(x.float()).double() for each in (model.q, model.k, model.v))
    logits = q @ k.T / 6**0.5
    weights = logits.softmax(-1)
    mixed = weights @ v
    relevance = linear(relevance, mixed, model.out, gamma)
    parts = weights[:, :, None] * v / mixed[:, None] * relevance[:, None] / 2
    of_weights = parts.sum(2)
    of_logits = logits * (of_weights - weights * of_weights.sum(1, keepdim=True))
    pairs = q[:, None] * k / 6**0.5 / logits[..., None] * of_logits[..., None] / 2
    given = ((pairs.sum(1), model.q), (pairs.sum(0), model.k), (parts.sum(0), model.v))
    return sum((linear(r, x, layer, gamma) for r, layer in given), torch.zeros(()))


def stated(model: Net, image: Tensor, index: int) -> Tensor:
    """Pass relevance back from one logit to the pixels, layer by layer. Return the sums of the
    channels."""
    with torch.no_grad():
        patches = model.embed(image).flatten(2)[0].T
        left = model.first(patches)
        after = patches + softmax_attention(left[None], model.q, model.k, model.v, model.out)[0]
        right = model.second(after)
        up = model.up(right)
        down = model.down(functional.gelu(up))
        end = after + down
        logits = model.head(end.mean(0))
    one = torch.zeros(3).double()
    one[index] = logits[index]
    of_mean = linear(one[None], end.mean(0)[None].double(), model.head, LINEAR)
    of_end = end / end.sum(0) * of_mean
    of_up = linear(of_end * down / end, functional.gelu(up).double(), model.down, LINEAR)
    of_right = linear(of_up, right.double(), model.up, LINEAR)
    of_after = of_end * after / end + normed(of_right, after.double(), model.second)
    mixed = after - patches
    of_left = attended(of_after * mixed / after, left.double(), model, LINEAR)
    of_patches = of_after * patches / after + normed(of_left, patches.double(), model.first)
    pixels = functional.unfold(image, 4, stride=4)[0].T.double()
    flat = nn.Linear(48, 6)
    flat.weight.data = model.embed.weight.detach().flatten(1)
    flat.bias.data = torch.zeros(6) if model.embed.bias is None else model.embed.bias.detach()
    of_pixels = linear(of_patches, pixels, flat, CONVOLUTION)
    found = functional.fold(of_pixels.T[None].float(), (8, 8), 4, stride=4)
    return found[0].sum(0).detach()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("attention", [softmax_attention, fused])
def test_each_operation_has_the_rule_of_the_paper(attention: Attention, bias: bool) -> None:
    model, image = made(attention, bias=bias), images(1)
    expected = stated(model, image, 1)
    (found,) = explain(model, image, target=1, method="attnlrp", signed=True)
    scale = float(expected.abs().max())
    np.testing.assert_allclose(found.map, expected, rtol=2e-3, atol=1e-4 * scale)
    (positive,) = explain(model, image, target=1, method="attnlrp")
    np.testing.assert_allclose(positive.map, np.maximum(found.map, 0), rtol=1e-5)


@pytest.mark.parametrize("attention", [softmax_attention, fused, joined])
def test_the_modules_of_attention_do_the_same(
    attention: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without γ, which torch's own module has no layers for."""
    monkeypatch.setattr("cam.methods.attnlrp.LINEAR", 0)
    image = images(1)
    maps = [
        explain(made(each), image, target=2, method="attnlrp", signed=True)[0].map
        for each in (softmax_attention, attention)
    ]
    np.testing.assert_allclose(maps[1], maps[0], rtol=1e-3, atol=1e-4 * np.abs(maps[0]).max())


@pytest.mark.parametrize("layer", [nn.Linear(5, 4), nn.Conv2d(5, 4, 3, 2, padding=1)])
def test_the_rule_gamma_is_zennits(layer: nn.Module) -> None:
    torch.manual_seed(2)
    x = torch.randn(*((3, 5) if isinstance(layer, nn.Linear) else (2, 5, 7, 7)))
    relevance = torch.randn_like(layer(x))
    theirs = x.clone().requires_grad_()
    handles = Gamma(0.3, stabilizer=1e-12).register(layer)
    (expected,) = torch.autograd.grad(layer(theirs), theirs, relevance)
    handles.remove()
    mine = x.clone().requires_grad_()
    with RelevanceRules(layer, linear=0.3, convolution=0.3):
        output = layer(mine)
    (slopes,) = torch.autograd.grad(output, mine, relevance / output.detach())
    torch.testing.assert_close(x * slopes, expected, rtol=1e-3, atol=1e-4)


def activations() -> dict[str, nn.Module]:
    transformers = pytest.importorskip("transformers.activations")
    return {
        "GELU": nn.GELU(),
        "SiLU": nn.SiLU(),
        "Tanh": nn.Tanh(),
        "in place": nn.Hardswish(inplace=True),
        "of several functions": transformers.NewGELUActivation(),
        "of two factors": transformers.QuickGELUActivation(),
    }


@pytest.mark.parametrize("name", activations())
def test_a_function_of_one_number_passes_on_what_it_has(name: str) -> None:
    layer, x = activations()[name], torch.tensor([-2.0, -0.5, 0.0, 0.5, 3.0], requires_grad=True)
    with RelevanceRules(layer):
        output = layer(x * 1)
    torch.testing.assert_close(output, activations()[name](x.detach().clone()))
    (slopes,) = torch.autograd.grad(output.sum(), x)
    expected = torch.where(x == 0, 0, output).detach()
    torch.testing.assert_close((x * slopes).detach(), expected)


def test_what_a_function_makes_of_0_is_a_bias() -> None:
    """Of a sigmoid near 0, the share of the input would be without bounds."""
    x = torch.tensor([-1e-6, 0, 1e-6, 2], requires_grad=True)
    with RelevanceRules(nn.Sigmoid()):
        output = x.sigmoid()
    (slopes,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(slopes[[0, 2]], torch.full((2,), 0.25), atol=0.03, rtol=0)
    assert float(2 * slopes[3]) == pytest.approx(float(output[3].detach()) - 0.5)


@pytest.mark.parametrize(
    "layer",
    [
        nn.LayerNorm(8, bias=False),
        nn.RMSNorm(8),
        nn.GroupNorm(2, 8, affine=False),
        pytest.param(lambda x: functional.normalize(x, dim=-1), id="normalize"),
        pytest.param(lambda x: x / x.norm(dim=-1, keepdim=True), id="division by the norm"),
        pytest.param(lambda x: x * torch.rsqrt((x**2).mean(-1, keepdim=True)), id="rsqrt"),
        pytest.param(lambda x: x * torch.pow((x**2).mean(-1, keepdim=True), -0.5), id="pow"),
        pytest.param(lambda x: x * (x**2).mean(-1, keepdim=True) ** -0.5, id="**"),
    ],
)
def test_a_normalisation_divides_by_a_constant(layer: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    x, out = torch.randn(3, 8, requires_grad=True), torch.randn(3, 8)
    module = layer if isinstance(layer, nn.Module) else nn.Identity()
    with RelevanceRules(module):
        output = layer(x)
    torch.testing.assert_close(output, layer(x), rtol=1e-4, atol=1e-5)
    (slopes,) = torch.autograd.grad(output, x, out)
    (plain,) = torch.autograd.grad(layer(x), x, out)
    assert not torch.allclose(slopes, plain)
    # A step along x scales what is normalised, and the plain gradient knows that it does nothing.
    torch.testing.assert_close((x * slopes).sum().detach(), (output * out).sum().detach())


def test_it_lies_on_what_a_trained_transformer_looks_at() -> None:
    """Red and green squares lie anywhere: a class is which of the two there is."""
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(16, 4, 2, 2, 24, 48, num_classes=2)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)

    def scenes(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = torch.randn(count, 3, 16, 16) * 0.1
        labels, places = torch.randint(0, 2, (count,)), torch.randint(0, 16, (count, 2))
        for row, label, (cell, other) in zip(x, labels, places.tolist(), strict=True):
            top, left = cell // 4 * 4, cell % 4 * 4
            row[label, top : top + 4, left : left + 4] += 2
            row[2, other // 4 * 4 :][:4, other % 4 * 4 :][:, :4] += 2  # blue means nothing
        return x, labels, places[:, 0], places[:, 1]

    for _ in range(150):
        x, labels, _, _ = scenes(64)
        loss = functional.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    model.eval()
    x, labels, cells, others = scenes(40)
    hits = 0
    for image, label, cell, other in zip(x, labels, cells, others, strict=True):
        if cell == other:
            continue
        (found,) = explain(model, image[None], target=int(label), method="attnlrp")
        parts = found.map.reshape(4, 4, 4, 4).sum((1, 3))
        hits += parts.argmax() == cell
    assert hits >= 0.9 * int((cells != others).sum())


def test_what_is_refused() -> None:
    with pytest.raises(MethodUnsuited, match=r"^it needs attention: this model has none$"):
        require_rules(small(), images(1))
    with pytest.raises(MethodUnsuited, match="needs attention"):
        explain(small(), images(1), method="attnlrp")
    target = ClassTarget(1, of="probability")
    with pytest.raises(MethodUnsuited, match="shares out logits, and no probabilities"):
        explain(made(), images(1), target=target, method="attnlrp")

    def ordered(x: Tensor, **parts: nn.Module) -> Any:
        return softmax_attention(x.sort(1).values, **parts)

    reason = "it needs a rule for each operation: sort of this model has none"
    with pytest.raises(MethodUnsuited, match=f"^{reason}$"):
        require_rules(made(ordered), images(1))
    with pytest.raises(MethodUnsuited, match=reason):
        explain(made(ordered), images(1), method="attnlrp")

    def in_place(x: Tensor, **parts: nn.Module) -> Any:
        return softmax_attention(x, **parts).mul_(x)

    def odd(x: Tensor, **parts: nn.Module) -> Any:
        return softmax_attention(functional.gelu(input=x), **parts)

    with pytest.raises(MethodUnsuited, match="its rules do not fit this model: IndexError"):
        require_rules(made(odd), images(1))
    with pytest.raises(MethodUnsuited, match="its rules do not fit this model"):
        explain(made(odd), images(1), method="attnlrp")

    def listed(x: Tensor, **parts: nn.Module) -> Any:
        return torch.einsum("bnd,bnd->bnd", [softmax_attention(x, **parts), x])

    for kind, operation in ((listed, "einsum"), (in_place, "mul_")):
        with pytest.raises(MethodUnsuited, match=f"{operation} of this model"):
            require_rules(made(kind), images(1))


@pytest.mark.parametrize("build", [vit, of_timm, of_hugging_face])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_model_is_left_as_it_was(
    build: Callable[[], nn.Module], mode: Callable[[], torch.no_grad]
) -> None:
    model, x = build().train(), images(1, size=64)
    named = dict(model.named_parameters())
    next(iter(named.values())).requires_grad_(False)
    asked = {name: parameter.requires_grad for name, parameter in named.items()}
    with mode():
        (found,) = explain(model, x, target=1, method="attnlrp", signed=True)
    assert np.isfinite(found.map).all()
    assert found.map.any()
    with pytest.raises(CamError):
        explain(model, x, target=10**6, method="attnlrp")
    assert hook_count(model) == 0
    assert all(module.training for module in model.modules())
    assert {name: each.requires_grad for name, each in model.named_parameters()} == asked
    assert all(each.grad is None for each in named.values())


def test_the_rules_end_with_the_block() -> None:
    """After an exception, and after an enter that failed."""
    model, image = made(), images(1)
    plain = model(image)
    with pytest.raises(ZeroDivisionError), RelevanceRules(model):
        raise ZeroDivisionError
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert hook_count(model) == 0

    class Unwilling(nn.Module):
        def modules(self, *given: object, **named: object) -> object:  # type: ignore[override]
            raise ZeroDivisionError

    model.head.add_module("unwilling", Unwilling())
    with pytest.raises(ZeroDivisionError), RelevanceRules(model.head.unwilling):
        pass
    assert torch.equal(model(image), plain)
