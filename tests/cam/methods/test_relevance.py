"""LRP: by hand, beside zennit itself, what it refuses, and the model as it was."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torchvision
from torch import nn
from zennit.attribution import Gradient
from zennit.composites import EpsilonPlusFlat
from zennit.torchvision import ResNetCanonizer

from cam import ClassTarget, Target, UnitTarget, explain
from cam.errors import MethodUnsuited
from cam.methods.relevance import TOLERANCE, ruled
from tests.zoo.convolutional import segmenter, small
from tests.zoo.parts import Net, as_after_training, hook_count, images


def by_hand() -> nn.Sequential:
    """A row of three pixels x; h = relu(x); u = 2 h_j + h_j+1 + 1 at two places; the logits are
    y = u_1 - u_2 + 10 and -y."""
    model = nn.Sequential(
        nn.Conv2d(1, 1, 1), nn.ReLU(), nn.Conv2d(1, 1, (1, 2)), nn.Flatten(), nn.Linear(2, 2)
    )
    numbers = ([[[[1.0]]]], [0.0], [[[[2.0, 1]]]], [1.0], [[1.0, -1], [-1, 1]], [10.0, -10])
    for parameter, values in zip(model.parameters(), numbers, strict=True):
        parameter.data = torch.tensor(values)
    return model.eval()


def test_by_hand() -> None:
    """x = (1, 3, 2): u = (6, 9), y = 7. ε: of 6 - 9 = -3, which the bias is not part of, the shares
    are 7 · 6 / -3 = -14 and 7 · 9 / 3 = 21. z⁺: -14 as 2 to 3, and 21 as 6 to 2."""
    photo = torch.tensor([[[[1.0, 3, 2]]]])
    expected = [[-14 * 2 / 5, -14 * 3 / 5 + 21 * 6 / 8, 21 * 2 / 8]]
    (found,) = explain(by_hand(), photo, target=0, method="lrp", signed=True)
    np.testing.assert_allclose(found.map, expected, rtol=1e-4)
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(7, rel=1e-4)
    assert found.completeness.difference == pytest.approx(7)
    (positive,) = explain(by_hand(), photo, target=0, method="lrp")
    np.testing.assert_allclose(positive.map, np.maximum(expected, 0), rtol=1e-4)
    other, against = explain(
        by_hand(), photo, target=[1, ClassTarget(0, against=True)], method="lrp", signed=True
    )
    np.testing.assert_allclose(other.map, -found.map, rtol=1e-4)
    np.testing.assert_allclose(against.map, -found.map, rtol=1e-4)
    assert against.completeness is not None
    assert against.completeness.difference == pytest.approx(-7)


def test_only_positive_weights_of_a_convolution_count() -> None:
    """With -1 in place of 1, u = (2 - 3 + 1, 6 - 2 + 1) = (0, 5), y = 5: all of it is u_2's, and of
    that all is the pixel's that has a positive weight."""
    model, photo = by_hand(), torch.tensor([[[[1.0, 3, 2]]]])
    model.get_parameter("2.weight").data[..., 1] = -1
    (found,) = explain(model, photo, target=0, method="lrp", signed=True)
    np.testing.assert_allclose(found.map, [[0, 5, 0]], atol=1e-3)


def residual() -> nn.Module:
    bottleneck = torchvision.models.resnet.Bottleneck
    model: nn.Module = torchvision.models.ResNet(bottleneck, [1, 1, 1, 1], num_classes=7)
    return model


def plain() -> nn.Module:
    model: nn.Module = torchvision.models.vgg11_bn(num_classes=7)
    model.classifier = nn.Sequential(
        nn.Linear(512 * 49, 12), nn.ReLU(inplace=True), nn.Linear(12, 7)
    )
    return model


def seeded(build: Callable[[], nn.Module]) -> nn.Module:
    """With statistics and biases such as training leaves."""
    torch.manual_seed(3)
    return as_after_training(build())


@pytest.mark.parametrize("build", [residual, plain])
def test_it_equals_zennit(build: Callable[[], nn.Module]) -> None:
    model, x = seeded(build), images(1, size=64)
    (found,) = explain(model, x, target=3, method="lrp", signed=True)
    composite = EpsilonPlusFlat(zero_params=["bias"], canonizers=[ResNetCanonizer()])
    theirs = copy.deepcopy(model)
    with torch.no_grad():
        start = torch.eye(7)[[3]] * theirs(x)
    with Gradient(model=theirs, composite=composite) as attributor:
        _, relevance = attributor(x, start)
    expected = relevance.sum(1)[0].detach().numpy()
    np.testing.assert_allclose(found.map, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(
        found.completeness.difference, rel=TOLERANCE
    )


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_model_is_left_as_it_was(mode: Callable[[], torch.no_grad]) -> None:
    model, x = seeded(residual).train(), images(1, size=64)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    parameters, forwards = dict(model.named_parameters()), [m.forward for m in model.modules()]
    with mode():
        explain(model, x, target=3, method="lrp")
    assert hook_count(model) == 0
    assert all(module.training for module in model.modules())
    assert [m.forward for m in model.modules()] == forwards
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert parameter.grad is None
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def normalised(*modules: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(*modules, nn.Flatten(), nn.Linear(3 * 64, 2)))


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "an addition": (
        lambda: Net(
            lambda x, conv, head: head((lambda seen: seen + seen.relu())(conv(x)).flatten(1)),
            conv=nn.Conv2d(3, 4, 3),
            head=nn.Linear(4 * 36, 2),
        ),
        "a rule for each operation: add of this model has none",
    ),
    "a convolution that runs twice": (
        lambda: Net(
            lambda x, conv, head: head(conv(conv(x)).flatten(1)),
            conv=nn.Conv2d(3, 3, 1),
            head=nn.Linear(192, 2),
        ),
        "a second call of Conv2d of this model has none",
    ),
    "a mean": (small, "a rule for each operation: mean of this model has none"),
    "an attention": (
        lambda: torchvision.models.VisionTransformer(8, 4, 1, 1, 8, 8),
        "each operation: GELU, LayerNorm, NonDynamicallyQuantizableLinear of this model has none",
    ),
    "a normalisation in front": (
        lambda: normalised(nn.BatchNorm2d(3)),
        "each batch normalisation right behind a convolution",
    ),
    "a normalisation without weights": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, affine=False), nn.Flatten(), nn.Linear(192, 2)
        ),
        "batch normalisations with weights",
    ),
    "modules in another order": (
        lambda: seeded(
            lambda: Net(
                lambda x, conv, norm, flatten, head: head(flatten(conv(norm(x)))),
                conv=nn.Conv2d(3, 3, 1),
                norm=nn.BatchNorm2d(3),
                flatten=nn.Flatten(),
                head=nn.Linear(192, 2),
            )
        ),
        "merging the batch normalisations changes the output",
    ),
    "a segmenter": (segmenter, "a rule for each operation|needs a classifier"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_rule_is_refused(name: str) -> None:
    build, words = REFUSED[name]
    torch.manual_seed(0)
    model, x = build().eval(), images(1, size=64 if name == "a segmenter" else 8)
    with pytest.raises(MethodUnsuited, match=words) as error:
        explain(model, x, method="lrp")
    with pytest.raises(MethodUnsuited, match=f"^{re.escape(str(error.value))}$"):
        ruled(model, x)
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    "target", [ClassTarget(0, minus=1), ClassTarget(0, of="probability"), UnitTarget("0", 0)]
)
def test_other_scores_are_refused(target: Target) -> None:
    photo = torch.tensor([[[[1.0, 3, 2]]]])
    with pytest.raises(MethodUnsuited, match="the logit of one class, and no other score"):
        explain(by_hand(), photo, target=target, method="lrp")


def test_a_score_that_is_lost_is_refused() -> None:
    """No input of the second convolution is positive, so z⁺ has nothing to share out to."""
    model, photo = by_hand(), -torch.tensor([[[[1.0, 3, 2]]]])
    with pytest.raises(MethodUnsuited, match="what arrives at the photo is 0% of it"):
        explain(model, photo, target=0, method="lrp")


def test_without_zennit_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("zennit", "zennit.torchvision", "zennit.layer", "zennit.composites"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MethodUnsuited, match=r"pip install 'gradcam-service\[lrp\]'"):
        explain(by_hand(), torch.ones(1, 1, 1, 3), method="lrp")
