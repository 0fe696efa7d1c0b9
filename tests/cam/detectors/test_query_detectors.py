"""Hugging Face's detectors, with tiny configurations: what they say, and where their maps are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    DeformableDetrConfig,
    DeformableDetrForObjectDetection,
    DetrConfig,
    DetrForObjectDetection,
    ResNetConfig,
    YolosConfig,
    YolosForObjectDetection,
)

import cam
from cam.detectors.forms import form_of
from cam.layers import level_layers
from cam.outputs.outputs import outputs_of, size_of
from tests.zoo.detectors import blurry

SMALL = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_queries": 9,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "num_labels": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
}


def backbone(*stages: str) -> ResNetConfig:
    return ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 12, 16, 24],
        depths=[1, 1, 1, 1],
        out_features=list(stages),
    )


def detr() -> nn.Module:
    model: nn.Module = DetrForObjectDetection(
        DetrConfig(**SMALL, backbone_config=backbone("stage4"))
    )
    return model


def deformable() -> nn.Module:
    stages = backbone("stage2", "stage3", "stage4")
    model: nn.Module = DeformableDetrForObjectDetection(
        DeformableDetrConfig(**SMALL, backbone_config=stages, num_feature_levels=3)
    )
    return model


def yolos() -> nn.Module:
    model: nn.Module = YolosForObjectDetection(
        YolosConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            image_size=[96, 96],
            patch_size=16,
            num_detection_tokens=9,
            num_labels=3,
        )
    )
    return model


@pytest.mark.parametrize(
    ("build", "form", "default", "levels"),
    [
        (detr, "detr", "model.encoder.layers.1", ("model.encoder.layers.1",)),
        pytest.param(
            deformable,
            "detr-sigmoid",
            "model.input_proj.2",
            tuple(f"model.input_proj.{turn}" for turn in range(3)),
            marks=pytest.mark.slow,
        ),
        pytest.param(yolos, "detr", "vit.encoder.layer.0", None, marks=pytest.mark.slow),
    ],
)
def test_maps_of_queries(
    build: Callable[[], nn.Module], form: str, default: str, levels: tuple[str, ...] | None
) -> None:
    torch.manual_seed(0)
    model = build().eval().requires_grad_(False)
    image = 2 * blurry(96) - 1
    assert form_of(model(image)) == form
    found = cam.survey(model, image)
    assert cam.default_layer(found) == default
    assert levels in (None, level_layers(found))
    (answer,) = cam.explain(model, image, layer=default, method="hirescam", signed=True)
    (same,) = cam.explain(model, image, layer=default, method="odam", signed=True)
    kept: list[torch.Tensor] = []

    def keep(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        kept.append(output.detach().clone().requires_grad_())
        return kept[0].clone()

    handle = model.get_submodule(default).register_forward_hook(keep)
    (said,) = outputs_of(model(image), size=size_of(image))
    handle.remove()
    assert said.detections is not None
    (gradient,) = torch.autograd.grad(said.detections.scores[0], kept[0])
    grid = next(layer.grid for layer in found if layer.name == default)
    assert grid is not None
    expected = (grid.apply(gradient) * grid.apply(kept[0].detach())).sum(1)[0]
    assert expected.abs().max() > 0
    for each in (answer, same):
        torch.testing.assert_close(
            torch.tensor(each.map), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max())
        )


def test_the_activation_of_query_detectors_is_resolved() -> None:
    """Their boxes are in 0 … 1, so reading them takes the size of the image."""
    reading, why = cam.resolve_reading(yolos().eval(), torch.zeros(1, 3, 64, 64))
    assert (reading.activation, why[:10]) == ("none", "a detector")
