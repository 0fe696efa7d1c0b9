"""The attention methods on the transformers of timm and Hugging Face: each is refused for a true
reason, as `unsuited` says beforehand, or gives the maps that the model's own attention gives."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers
from torch import Tensor, nn

from cam import explain
from cam.errors import MethodUnsuited
from cam.methods.attention import attention_problems
from tests.cam.methods.needs import MATRICES
from tests.quick import quick
from tests.zoo.parts import Net, hook_count, images

METHODS = ("rollout", "chefer", "agcam", "legrad")
SMALL = {"img_size": 64, "embed_dim": 48, "num_heads": 3, "depth": 2}

DONE: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": SMALL,
    "vit_base_patch16_gap_224": SMALL,
    "deit3_small_patch16_224": SMALL,
    "beit_base_patch16_224": SMALL,
    "beitv2_base_patch16_224": SMALL,
    "vit_relpos_small_patch16_224": SMALL,
    "vit_relpos_base_patch16_clsgap_224": SMALL,
    "vit_srelpos_small_patch16_224": SMALL,
    "eva02_tiny_patch14_224": SMALL | {"img_size": 56},
    "vit_small_patch14_reg4_dinov2": SMALL | {"img_size": 70},
    "vit_little_patch16_reg4_gap_256": SMALL,
    "convit_tiny": {"img_size": 64, "embed_dim": 12, "num_heads": 4, "depth": 2},
}
WINDOWS, POOLED, STAGES = "within windows or blocks", "pooled or of another", "in one layer and"
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "xcit_nano_12_p16_224": ("joins channels, not patches", {"img_size": 64, "depth": 2}),
    "edgenext_xx_small": ("joins channels, not patches", {}),
    "cait_xxs24_224": ("one query for 17 keys", {"img_size": 64, "depth": 2}),
    "vit_small_patch16_18x2_224": ("side by side", SMALL),
    "vit_dlittle_patch16_reg1_gap_256": ("side by side", SMALL),
    "nest_tiny": (WINDOWS, {"img_size": 32}),
    "twins_svt_small": (WINDOWS, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "swin_tiny_patch4_window7_224": (
        WINDOWS,
        {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": 24, "window_size": 4},
    ),
    "swinv2_tiny_window8_256": (
        WINDOWS,
        {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": 24, "window_size": 4},
    ),
    "maxvit_pico_rw_256": (WINDOWS, {"img_size": 64}),
    "gcvit_xxtiny": (WINDOWS, {"img_size": 64}),
    "volo_d1_224": (WINDOWS, {"img_size": 64}),
    "tnt_s_patch16_224": (WINDOWS, {"img_size": 64, "depth": 2}),
    "mobilevit_xxs": (WINDOWS, {}),
    "pvt_v2_b0": (POOLED, {"depths": (1, 1, 1, 1)}),
    "twins_pcpvt_small": (POOLED, {"img_size": 64, "depths": (1, 1, 1, 1)}),
    "levit_128s": (POOLED, {"img_size": 64}),
    "coatnet_pico_rw_224": (STAGES, {"img_size": 64}),
    "visformer_tiny": (STAGES, {"img_size": 64}),
    "mobilevitv2_050": ("no softmax self-attention", {}),
}


def built(name: str, options: dict[str, Any]) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=7, **options)
    return model.eval()


def stirred(model: nn.Module) -> nn.Module:
    """With weights under which the layers do something: timm begins with scales of 1e-5 and a
    head of noughts."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 and parameter.abs().max() < 0.1:
                parameter.add_(0.5)
            elif parameter.ndim > 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def side(name: str) -> int:
    found: int = {"nest_tiny": 32}.get(name, DONE.get(name, {}).get("img_size", 64))
    return found


OF_EACH_REASON = (
    *("xcit_nano_12_p16_224", "cait_xxs24_224", "vit_small_patch16_18x2_224", "nest_tiny"),
    *("pvt_v2_b0", "coatnet_pico_rw_224", "mobilevitv2_050"),
)


@pytest.mark.parametrize("name", quick(REFUSED, OF_EACH_REASON))
def test_what_is_refused_is_refused_with_its_reason(name: str) -> None:
    words, options = REFUSED[name]
    model, x = built(name, options), images(1, size=side(name))
    reasons = attention_problems(model, x)
    assert set(reasons) == set(MATRICES)
    for method in MATRICES:
        with pytest.raises(MethodUnsuited, match=words) as error:
            explain(model, x, target=3, method=method)
        assert str(error.value) == reasons[method]
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    "name",
    quick(
        DONE,
        ["vit_tiny_patch16_224", "beit_base_patch16_224", "convit_tiny"],
    ),
)
def test_what_is_not_refused_is_done(name: str) -> None:
    model, x = stirred(built(name, DONE[name])), images(1, size=side(name))
    cells = 5 if side(name) == 70 else 4
    reasons = attention_problems(model, x)
    # ConViT mixes two softmaxes by a gate.
    assert set(reasons) <= {"gradeclip", *(["agcam"] if name == "convit_tiny" else [])}
    assert ("agcam" in reasons) == (name == "convit_tiny")
    if "gradeclip" in reasons:
        assert re.search("read (.* tokens|a patch)|a softmax and a product", reasons["gradeclip"])
        with pytest.raises(MethodUnsuited) as error:
            explain(model, x, target=3, method="gradeclip")
        assert str(error.value) == reasons["gradeclip"]
    for method in set(MATRICES) - set(reasons):
        (found,) = explain(model, x, target=3, method=method)
        assert found.map.shape == (cells, cells)
        assert np.isfinite(found.map).all()
        assert np.ptp(found.map) > 0
    assert hook_count(model) == 0


def own_attention(
    model: Any, x: Tensor, target: int
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """A timm transformer's attention in its own unfused code, (heads, N, N) for each block, the
    logit's gradient there, and that of the logit read from the tokens as they leave the block."""
    matrices: list[Tensor] = []
    left: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        if not output.requires_grad:
            output.requires_grad_()
        output.retain_grad()
        matrices.append(output)

    handles = []
    for block in model.blocks:
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_hook(keep))
        handles.append(block.register_forward_hook(lambda _, args, output: left.append(output)))
    logit = model(x)[0, target]
    for handle in handles:
        handle.remove()
    for block in model.blocks:
        block.attn.fused_attn = True
    gradients = torch.autograd.grad(logit, matrices, retain_graph=True)
    by_layer = [
        torch.autograd.grad(
            model.forward_head(model.norm(tokens))[0, target], matrix, retain_graph=True
        )[0]
        for tokens, matrix in zip(left, matrices, strict=True)
    ]
    return (
        [each.detach()[0] for each in matrices],
        [each[0] for each in gradients],
        [each[0] for each in by_layer],
    )


@pytest.mark.parametrize(
    "name",
    quick(
        [
            "vit_tiny_patch16_224",
            "vit_base_patch16_gap_224",
            "beit_base_patch16_224",
            "vit_relpos_small_patch16_224",
            "vit_relpos_base_patch16_clsgap_224",
            "vit_small_patch14_reg4_dinov2",
        ],
        ["vit_tiny_patch16_224", "vit_relpos_small_patch16_224"],
    ),
)
def test_the_maps_are_those_of_the_models_own_attention(name: str) -> None:
    model: Any = stirred(built(name, DONE[name]))
    x = images(1, size=side(name))
    matrices, gradients, by_layer = own_attention(model, x, 3)
    tokens, prefix = matrices[0].shape[-1], model.num_prefix_tokens
    reads = torch.zeros(tokens)
    if model.global_pool == "token":
        reads[0] = 1
    else:
        reads[prefix:] = 1 / (tokens - prefix)
    eye = torch.eye(tokens)
    rollout, chefer = eye, eye
    for matrix, gradient in zip(matrices, gradients, strict=True):
        mixed = 0.5 * matrix.mean(dim=0) + 0.5 * eye
        rollout = mixed @ rollout
        chefer = chefer + (matrix * gradient).clamp(min=0).mean(dim=0) @ chefer
    legrad = torch.stack([each.clamp(min=0).mean(dim=(0, 1)) for each in by_layer]).mean(0)
    expected = {
        "rollout": reads @ rollout,
        "chefer": reads @ (chefer - eye),
        "legrad": legrad,
    }
    for method, row in expected.items():
        (found,) = explain(model, x, target=3, method=method)
        peer = row[prefix:].reshape(found.map.shape).numpy()
        assert np.ptp(peer) > 0
        np.testing.assert_allclose(found.map, peer, rtol=1e-3, atol=1e-4 * np.abs(peer).max())


def of_hugging_face(kind: str, attention: str) -> nn.Module:
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "image_size": 64,
        "num_labels": 7,
    }
    of: Any = transformers
    configurations: dict[str, Callable[[], Any]] = {
        "ViT": lambda: of.ViTConfig(**small),
        "Beit": lambda: of.BeitConfig(**small, use_relative_position_bias=True),
        "Dinov2WithRegisters": lambda: of.Dinov2WithRegistersConfig(
            **small, patch_size=16, num_register_tokens=4
        ),
        "Swin": lambda: of.SwinConfig(
            image_size=64,
            patch_size=4,
            embed_dim=16,
            depths=[1, 1],
            num_heads=[2, 2],
            window_size=4,
            num_labels=7,
        ),
    }
    torch.manual_seed(0)
    configuration = configurations[kind]()
    configuration._attn_implementation = attention
    model: nn.Module = getattr(of, f"{kind}ForImageClassification")(configuration)
    return stirred(model).eval()


@pytest.mark.parametrize("kind", ["ViT", "Beit", "Dinov2WithRegisters"])
def test_both_implementations_of_hugging_face_give_one_map(kind: str) -> None:
    x = images(1, size=64)
    models = [of_hugging_face(kind, attention) for attention in ("eager", "sdpa")]
    for method in METHODS:
        maps = [explain(model, x, target=3, method=method)[0].map for model in models]
        assert maps[0].shape == (4, 4)
        assert np.ptp(maps[0]) > 0
        for one, other in pairwise(maps):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(one).max())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_swin_of_hugging_face_is_refused_for_its_windows(attention: str) -> None:
    model, x = of_hugging_face("Swin", attention), images(1, size=64)
    for method in METHODS:
        with pytest.raises(MethodUnsuited, match=WINDOWS):
            explain(model, x, target=3, method=method)


def of_siglip(*, head: bool) -> Any:
    """A classifier of the mean of the patches. Its pooling head with a query of its own, if it has
    one, computes what the logits do not use."""
    configuration = transformers.SiglipConfig(
        vision_config={
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "image_size": 64,
            "vision_use_head": head,
        },
        num_labels=7,
    )
    torch.manual_seed(0)
    return transformers.SiglipForImageClassification(configuration).eval()


def test_a_pooling_head_that_the_logits_do_not_use_changes_nothing() -> None:
    x, with_head, without = images(1, size=64), of_siglip(head=True), of_siglip(head=False)
    without.load_state_dict(stirred(with_head).state_dict(), strict=False)
    assert set(attention_problems(with_head, x)) == {"gradeclip"}  # its logits read the mean
    for method in METHODS:
        (found,), (expected,) = (
            explain(each, x, target=3, method=method) for each in (with_head, without)
        )
        assert np.ptp(found.map) > 0
        np.testing.assert_allclose(found.map, expected.map, rtol=1e-4, atol=1e-9)


def pooled_siglip() -> Net:
    """A classifier that reads the pooling head of transformers' SigLIP."""
    return Net(
        lambda x, trunk, classifier: classifier(trunk(x).pooler_output),
        trunk=of_siglip(head=True).vision_model,
        classifier=nn.Linear(32, 7),
    )


def of_timm_siglip() -> nn.Module:
    return built("vit_base_patch16_siglip_224", SMALL)


@pytest.mark.parametrize("build", [pooled_siglip, of_timm_siglip])
def test_legrad_alone_follows_a_head_that_pools_by_attention(build: Callable[[], Any]) -> None:
    model, x = stirred(build().eval()), images(1, size=64)
    reasons = attention_problems(model, x)
    assert set(reasons) == {"rollout", "chefer", "agcam", "gradeclip"}
    for method, reason in reasons.items():
        assert "one query for 16 keys" in reason
        with pytest.raises(MethodUnsuited, match="one query for 16 keys"):
            explain(model, x, target=3, method=method)
    one, other = explain(model, x, target=[3, 4], method="legrad")
    assert np.ptp(one.map) > 0
    assert not np.allclose(one.map, other.map)
    assert hook_count(model) == 0


def test_legrad_of_a_pooling_head_restated() -> None:
    """mean_l mean_heads relu(∂y_l/∂a_l), a_l the head's weights of the tokens that layer l
    leaves, which the head's own module computes: its output is W Σ_j a_j v_j + b."""
    model: Any = stirred(pooled_siglip().eval())
    x = images(1, size=64)
    (found,) = explain(model, x, target=3, method="legrad")
    trunk, head, width = model.trunk, model.trunk.head, 16  # of each of the two heads
    left = trunk(x, output_hidden_states=True).hidden_states[1:]
    rows = []
    with torch.enable_grad():
        for tokens in left:
            tokens = trunk.post_layernorm(tokens.detach())
            weights, biases = head.attention.in_proj_weight, head.attention.in_proj_bias
            q, k, v = (
                (given @ weights[at : at + 32].T + biases[at : at + 32]).reshape(-1, 2, width)
                for at, given in ((0, head.probe[0]), (32, tokens[0]), (64, tokens[0]))
            )
            scores = torch.einsum("qhd,khd->hk", q, k) / width**0.5
            a = scores.softmax(-1).detach().requires_grad_()
            mixed = head.attention.out_proj(torch.einsum("hk,khd->hd", a, v).reshape(1, 32))
            pooled = mixed + head.mlp(head.layernorm(mixed))
            (gradient,) = torch.autograd.grad(model.classifier(pooled)[0, 3], a)
            rows.append(gradient.relu().mean(0))
        torch.testing.assert_close(model.classifier(pooled), model(x))
    expected = torch.stack(rows).mean(0).reshape(4, 4)
    np.testing.assert_allclose(found.map, expected.numpy(), rtol=1e-4, atol=1e-7)
