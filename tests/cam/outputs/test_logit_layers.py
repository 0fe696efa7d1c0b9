"""A layer that returns the model's own output is not evidence for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from cam import default_layer, explain, survey
from cam.errors import NoTargetLayer
from cam.layers import stage_layers
from tests.zoo.convolutional import fcn, segmenter, unet
from tests.zoo.detectors import blurry, joined_yolo
from tests.zoo.parts import images

ENDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "as they are": lambda logits: logits,
    "enlarged": lambda logits: interpolate(logits, scale_factor=2, mode="bilinear"),
    "some classes": lambda logits: logits[:, 1:],
    "probabilities": lambda logits: logits.softmax(1),
    "tempered": lambda logits: logits / 2.0,
    "in half precision": lambda logits: logits.half(),
    "one class": lambda logits: logits[:, :1],
    "limited": lambda logits: logits.clamp(-30, 30),
    "softly limited": lambda logits: 30 * torch.tanh(logits / 30),
    "where the photo is": lambda logits: torch.where(torch.ones(8, 8) > 0, logits, 0.0),
    "masked": lambda logits: logits.masked_fill(torch.zeros(8, 8) > 0, 0.0),
    "padded": lambda logits: nn.functional.pad(logits, (1, 1, 1, 1), mode="reflect"),
    "of a trained temperature": lambda logits: logits / nn.Parameter(torch.tensor(1.5)),
    "of trained weights": lambda logits: logits * nn.Parameter(torch.ones(2)).softmax(0)[0],
    "normalised": lambda logits: nn.functional.batch_norm(logits, torch.zeros(4), torch.ones(4)),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_default_layer_of_a_segmenter_is_not_its_logits(ending: str) -> None:
    found = survey(unet(ENDINGS[ending]), images(1))
    assert [layer.name for layer in found if layer.logits] == ["out"]
    assert default_layer(found) == "up"
    assert stage_layers(found, "up") == ("up",)


def test_logits_that_are_gated_are_evidence() -> None:
    found = survey(unet(lambda logits: logits * logits.mean((2, 3), keepdim=True)), images(1))
    assert default_layer(found) == "out"


def test_scores_of_several_resolutions_are_logits() -> None:
    found = survey(fcn(), images(1))
    assert {layer.name for layer in found if layer.logits} == {"score_fine", "score_coarse"}
    assert default_layer(found) == "coarse"


@pytest.mark.slow
def test_the_default_layer_of_lraspp_is_in_front_of_its_two_branches_of_logits() -> None:
    found = survey(segmenter(), images(1, size=64))
    logits = {layer.name for layer in found if layer.logits}
    assert logits == {"classifier", "classifier.low_classifier", "classifier.high_classifier"}
    assert default_layer(found) == "classifier.cbr"


@pytest.mark.parametrize("method", ["gradcam", "scorecam", "eigencam"])
def test_logits_that_are_named_carry_a_warning(method: str) -> None:
    model = unet()
    (named,) = explain(model, images(1), method=method, layer="out")
    assert [each for each in named.warnings if "'out' returns the model's own output" in each]
    (earlier,) = explain(model, images(1), method=method, layer="up")
    assert not [each for each in earlier.warnings if "own output" in each]


def test_a_model_of_logits_alone_has_no_default_layer() -> None:
    with pytest.raises(NoTargetLayer, match="'0', returns the model's own output"):
        default_layer(survey(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)), images(1)))


def test_class_maps_that_are_averaged_are_evidence() -> None:
    """As in SqueezeNet, where they are the class activation maps themselves."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    assert default_layer(survey(model, images(1))) == "1"


def test_a_layer_that_returns_the_boxes_is_no_level_of_a_detector() -> None:
    model = joined_yolo()
    found = survey(model, blurry(64))
    assert {layer.name for layer in found if layer.logits} == {"head"}
    assert [layer.name for layer in found if layer.level] == ["stem"]
    (explanation,) = explain(model, blurry(64), method="odam")
    assert explanation.layer == "stem"


@pytest.mark.slow
def test_the_default_layer_of_segformer_is_not_its_logits() -> None:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    sizes = {"hidden_sizes": [8, 8, 8, 8], "depths": [1] * 4, "num_attention_heads": [1] * 4}
    model = SegformerForSemanticSegmentation(
        SegformerConfig(**sizes, decoder_hidden_size=8, num_labels=3)
    )
    found = survey(model, images(1, size=64))
    assert {layer.name for layer in found if layer.logits} == {
        "decode_head",
        "decode_head.classifier",
    }
    assert default_layer(found) == "decode_head.dropout"
