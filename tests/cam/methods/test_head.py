"""CAM: by hand, as what it must equal, and where there is no such head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models

from cam import (
    CamError,
    ClassTarget,
    ExplainedImage,
    Question,
    Target,
    UnitTarget,
    explain,
    explain_batch,
    survey,
)
from cam.errors import LayerDidNotRun, MethodUnsuited
from cam.hooks.grids import Grid
from cam.methods.head import HeadSignals, PooledHead, pooled_head
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, hook_count, images, means


def plain(x: Tensor, layer: nn.Module, head: nn.Module) -> Any:
    return head(means(layer(x)))


def two_means(function: Callable[..., Tensor] = plain) -> Net:
    """Of two feature maps, by default: their means, and a linear head with weights (2, -1), (1, 3)
    and a bias."""
    head = nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[2.0, -1], [1, 3]]))
    return Net(lambda x, **parts: function(x[:, :2], **parts), layer=nn.Identity(), head=head)


PHOTO = torch.tensor([[[[1.0, 0], [2, 0]], [[0, 3], [5, 0]], [[0, 0], [0, 0]]]])


def test_by_hand() -> None:
    def map_of(target: int | ClassTarget, *, signed: bool = True) -> list[list[float]]:
        (found,) = explain(
            two_means(), PHOTO, target=target, method="cam", layer="layer", signed=signed
        )
        values: list[list[float]] = found.map.tolist()
        return values

    assert map_of(0) == [[2, -3], [-1, 0]]
    assert map_of(0, signed=False) == [[2, 0], [0, 0]]
    assert map_of(1) == [[1, 9], [17, 0]]
    assert map_of(ClassTarget(0, minus=1)) == [[1, -12], [-18, 0]]
    assert map_of(ClassTarget(1, against=True)) == [[-1, -9], [-17, 0]]


def test_what_is_rectified_after_the_layer_by_hand() -> None:
    photo = torch.tensor([[[[3.0, -1], [0, 2]], [[0, 5], [-4, 0]], [[0, 0], [0, 0]]]])
    # 2 A_1 - A_2, of A as it is and of relu(A).
    for model, expected in (
        (two_means(), [[6, -7], [4, 4]]),
        (two_means(lambda x, layer, head: head(means(layer(x).relu()))), [[6, -5], [0, 4]]),
    ):
        (found,) = explain(model, photo, target=0, method="cam", layer="layer", signed=True)
        assert found.map.tolist() == expected


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        ("resnet18", "layer4"),
        pytest.param("densenet121", "features", marks=pytest.mark.slow),
        pytest.param("squeezenet1_1", "features", marks=pytest.mark.slow),
        pytest.param("lite0", "bn2", marks=pytest.mark.slow),
    ],
)
def test_it_is_grad_cam_times_the_number_of_positions(build: str, layer: str) -> None:
    """Of a pooled linear head (Selvaraju et al., section 3.1); a densely connected network
    rectifies in between, so there HiResCAM says the same."""
    torch.manual_seed(0)
    lite = build == "lite0"
    model = timm.create_model("tf_efficientnet_lite0") if lite else models.get_model(build)
    model.eval()
    x = images(1, size=96)
    if build == "squeezenet1_1":
        with pytest.raises(MethodUnsuited, match="'features' this model does something else"):
            explain(model, x, target=3, method="cam", layer=layer)
        return
    (found,) = explain(model, x, target=3, method="cam", layer=layer, signed=True)
    method = "hirescam" if build == "densenet121" else "gradcam"
    (other,) = explain(model, x, target=3, method=method, layer=layer, signed=True)
    np.testing.assert_allclose(
        found.map, other.map * other.map.size, atol=1e-4 * float(np.abs(found.map).max())
    )
    assert np.ptp(found.map) > 0


@pytest.mark.parametrize(
    ("layer", "target", "words"),
    [
        ("conv1", 0, "after 'conv1' this model does something else; gradcam needs no such head"),
        ("relu2", ClassTarget(0, of="probability"), "cam explains classes' logits"),
        ("relu2", UnitTarget("head", 0), "cam explains classes' logits"),
    ],
)
def test_another_head_is_refused(layer: str, target: int | Target, words: str) -> None:
    model = small()
    with pytest.raises(CamError, match=words):
        explain(model, images(1), target=target, method="cam", layer=layer)
    assert hook_count(model) == 0


def head_of(model: nn.Module, layer: str, x: Tensor) -> PooledHead:
    (grid,) = (each.grid for each in survey(model, x) if each.name == layer)
    assert grid
    return pooled_head(model, x, layer, grid)


def test_its_gradient_by_hand() -> None:
    """∂z_0/∂A = weights (2, -1) over four positions; of z_0 - z_1, (1, -4) over four."""
    model = two_means()
    head = head_of(model, "layer", PHOTO)
    assert head.weights.tolist() == [[2, -1], [1, 3]]
    signals = HeadSignals(head, PHOTO[:, :2], model(PHOTO))
    signals.backward(signals.logits[0, 0], retain_graph=True)
    assert signals.reached["layer"].tolist() == [[[[0.5] * 2] * 2, [[-0.25] * 2] * 2]]
    signals.backward(signals.logits[0, 0] - signals.logits[0, 1])
    assert signals.reached["layer"].tolist() == [[[[0.25] * 2] * 2, [[-1.0] * 2] * 2]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "layer"),
    [
        ("resnet18", "layer4"),
        ("densenet121", "features"),
        ("shufflenet_v2_x0_5", "conv5"),
        ("lite0", "bn2"),
    ],
)
def test_with_the_head_nothing_changes_but_the_price(build: str, layer: str) -> None:
    torch.manual_seed(0)
    lite = build == "lite0"
    model = timm.create_model("tf_efficientnet_lite0") if lite else models.get_model(build)
    model.eval()
    x = images(4, size=96)
    questions = [
        Question((ClassTarget(), ClassTarget(3)), "gradcam", (layer,), signed=True),
        Question((ClassTarget(5, minus=7),), "layercam", (layer,)),
        Question((ClassTarget(2, of="probability"),), "hirescam", (layer,), signed=True),
        Question((ClassTarget(4, against=True),), "finercam", (layer,), signed=True),
    ]
    inference: list[bool] = []
    plain = explain_batch(model, x, questions)
    with model.get_submodule(layer).register_forward_hook(
        lambda *_: inference.append(torch.is_inference_mode_enabled())
    ):
        cheap = explain_batch(model, x, questions, head=head_of(model, layer, x[:1]))
    assert inference[-1]
    for one, other in zip(cheap, plain, strict=True):
        assert isinstance(one, ExplainedImage)
        assert isinstance(other, ExplainedImage)
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-4)
        for found, expected in zip(one.explanations, other.explanations, strict=True):
            assert found.target == expected.target
            scale = float(np.abs(expected.map).max())
            assert scale > 0
            np.testing.assert_allclose(found.map, expected.map, atol=2e-4 * scale)
    assert hook_count(model) == 0


def test_another_layer_or_what_a_unit_says_goes_the_long_way() -> None:
    torch.manual_seed(0)
    model = models.resnet18().eval()
    x = images(1, size=64)
    head = head_of(model, "layer4", x)
    for question in (
        Question((ClassTarget(1),), "gradcam", ("layer3",)),
        Question((ClassTarget(1),), "gradcam", ("layer4", "layer3")),
        Question((UnitTarget("layer4", 3),), "gradcam", ("layer4",)),
    ):
        (one,), (other,) = (
            explain_batch(model, x, [question], head=given) for given in (head, None)
        )
        assert isinstance(one, ExplainedImage)
        assert isinstance(other, ExplainedImage)
        for found, expected in zip(one.explanations, other.explanations, strict=True):
            np.testing.assert_array_equal(found.map, expected.map)


def test_logits_that_are_more_than_the_heads_are_refused() -> None:
    model = two_means(lambda x, layer, head: 2 * head(means(layer(x))))
    with pytest.raises(MethodUnsuited, match="does something else"):
        pooled_head(model, PHOTO, "layer", Grid("channels first", 2, 2))


def test_a_layer_that_does_not_run_this_time() -> None:
    model = two_means(lambda x, layer, head: head(means(layer(x) if len(x) == 1 else x)))
    head = head_of(model, "layer", PHOTO)
    question = Question((ClassTarget(0),), "gradcam", ("layer",))
    with pytest.raises(LayerDidNotRun):
        explain_batch(model, PHOTO.repeat(2, 1, 1, 1), [question] * 2, head=head)


@pytest.mark.parametrize(
    "head", [nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 1, groups=4)], ids=["window", "groups"]
)
def test_a_head_that_is_no_linear_map_of_the_mean_is_none(head: nn.Conv2d) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), head, nn.Flatten()).eval()
    with pytest.raises(MethodUnsuited, match="cam needs a linear head"):
        head_of(model, "0", images(1))
    (found,) = explain(model, images(1), target=1, layer="0")
    assert found.map.shape == (6, 6)
