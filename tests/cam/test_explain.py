"""What an explanation holds, batches of mixed questions, and a model left alone."""

from __future__ import annotations

import gc
import math
import resource
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

from cam import (
    METHODS,
    CamError,
    ClassTarget,
    ExplainedImage,
    Question,
    UnitTarget,
    explain,
    explain_batch,
)
from cam.errors import (
    ClassOutOfRange,
    LayerNotSpatial,
    MethodUnsuited,
    NoGradientPath,
    NonFinite,
    NotLogits,
    UnknownMethod,
)
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.zoo.convolutional import Fork, small
from tests.zoo.parts import Net, at_layer, hook_count, images, means


def test_equals_the_paper_written_out() -> None:
    model, x = small(), images(1)
    activation = functional.relu(model.conv2(functional.relu(model.conv1(x))))
    logits = model.head(activation.mean(dim=(2, 3)))
    (gradient,) = torch.autograd.grad(logits[0, 2], activation)
    weights = gradient.mean(dim=(2, 3), keepdim=True)
    expected = functional.relu((weights * activation).sum(dim=1))[0].detach().numpy()

    (explanation,) = explain(model, x, target=2, layer="relu2")
    np.testing.assert_allclose(explanation.map, expected, rtol=1e-5)
    assert explanation.target.index == 2
    assert explanation.score == pytest.approx(logits[0, 2].item())
    assert explanation.probability == pytest.approx(logits.softmax(1)[0, 2].item())
    assert (explanation.method, explanation.layer) == ("gradcam", "relu2")


def test_the_predicted_class_and_the_automatic_layer_are_the_defaults() -> None:
    model, x = small(), images(4)
    found = explain(model, x)
    assert [each.target.index for each in found] == model(x).argmax(1).tolist()
    assert {each.layer for each in found} == {"relu2"}
    named = explain(model, x, layer="relu2")
    for each, other in zip(found, named, strict=True):
        np.testing.assert_array_equal(each.map, other.map)


def test_several_targets_and_layers_come_image_by_image_target_by_target() -> None:
    model, x = small(), images(2)
    found = explain(model, x, target=[0, None], layer=["conv1", "conv2"], method="hirescam")
    best = model(x).argmax(1).tolist()
    expected = [(t, la) for b in best for t in (0, b) for la in ("conv1", "conv2")]
    assert [(each.target.index, each.layer) for each in found] == expected
    for each, (row, target, layer) in zip(
        found,
        [(i, t, la) for i in (0, 1) for t in (0, best[i]) for la in ("conv1", "conv2")],
        strict=True,
    ):
        (alone,) = explain(model, x[row : row + 1], target=target, layer=layer, method="hirescam")
        np.testing.assert_allclose(each.map, alone.map, rtol=1e-4, atol=1e-7)


def test_what_the_model_used_by_hand() -> None:
    """Each channel's term of the logit: its mean over the positions times its weight."""
    model, x = small(), images(2)
    found = explain(model, x, target=2, layer="relu2", used=True)
    activation = functional.relu(model.conv2(functional.relu(model.conv1(x)))).detach()
    terms = (activation.mean((2, 3)) * model.head.weight[2]).detach().numpy()
    for each, of_channels in zip(found, terms, strict=True):
        assert each.used is not None
        np.testing.assert_allclose(each.used, of_channels, rtol=1e-5)
        assert each.used.sum() + model.head.bias[2].item() == pytest.approx(each.score, rel=1e-5)
    for name in ("layercam", "hirescam"):
        (same, _) = explain(model, x, target=2, layer="relu2", method=name, used=True)
        assert same.used is not None
        np.testing.assert_allclose(same.used, terms[0], rtol=1e-5)
    assert all(each.used is None for each in explain(model, x, target=2, layer="relu2"))
    (mean,) = explain(model, x[:1], layer=["relu1", "relu2"], fuse="mean", used=True)
    assert mean.used is None


@pytest.mark.parametrize("method", ["gradcam", "eigencam"])
def test_without_a_gradient_nothing_is_known_of_what_was_used(method: str) -> None:
    model, x = small(), images(1)
    with torch.no_grad():
        model.head.weight.zero_()
    (found,) = explain(model, x, target=2, layer="relu2", method=method, used=True)
    assert found.used is None


@pytest.mark.slow
def test_a_batch_of_mixed_questions_equals_each_alone() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    x = images(10, size=64)
    methods = [
        name for name, method in METHODS.items() if not (method.formula == "steps" or method.levels)
    ]
    questions = [
        Question(
            targets=tuple(ClassTarget(t) for t in ([None], [3, 999], [], [None, 5, 7])[i % 4]),
            method=methods[i % len(methods)],
            layers=[("layer4",), ("layer3", "layer2"), ("layer4", "layer1")][i % 3],
        )
        for i in range(len(x))
    ]
    together = explain_batch(model, x, questions)
    for i, answer in enumerate(together):
        (alone,) = explain_batch(model, x[i : i + 1], [questions[i]])
        assert isinstance(answer, ExplainedImage)
        assert isinstance(alone, ExplainedImage)
        np.testing.assert_allclose(answer.logits, alone.logits, atol=1e-4)
        expected = len(questions[i].targets) * len(questions[i].layers)
        assert len(answer.explanations) == len(alone.explanations) == expected
        for a, b in zip(answer.explanations, alone.explanations, strict=True):
            assert (a.target, a.layer, a.method) == (b.target, b.layer, b.method)
            scale = max(float(b.map.max()), 1e-12)
            assert np.abs(a.map - b.map).max() / scale <= 1e-4


def test_a_failure_belongs_to_its_item() -> None:
    model, x = small(), images(3)
    x[1] = math.nan
    questions = [Question((ClassTarget(t),), "gradcam", ("conv2",)) for t in (1, 1, 3)]
    good, poisoned, out_of_range = explain_batch(model, x, questions)
    assert isinstance(good, ExplainedImage)
    (alone,) = explain(model, x[:1], target=1, layer="conv2")
    np.testing.assert_allclose(good.explanations[0].map, alone.map, rtol=1e-5)
    assert isinstance(poisoned, NonFinite)
    assert isinstance(out_of_range, ClassOutOfRange)
    assert "class index 3 is out of range; the model has classes 0 to 2" in str(out_of_range)


def test_a_gradient_that_is_not_finite_is_its_items_error() -> None:
    model = at_layer(lambda a: a.sqrt().sum((2, 3)))  # its slope at 0 is infinite
    x = torch.ones(2, 3, 8, 8)
    x[1, 0, 0, 0] = 0
    question = Question((ClassTarget(0),), "gradcam", ("layer",))
    good, bad = explain_batch(model, x, [question] * 2)
    assert isinstance(good, ExplainedImage)
    assert isinstance(bad, NonFinite)
    assert "'layer'" in str(bad)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"method": "kam"}, UnknownMethod, "the methods are gradcam"),
        ({"layer": "dropout"}, LayerNotSpatial, r"'dropout': its output \(5,\)"),
        ({"target": -1}, ClassOutOfRange, "classes 0 to 2"),
    ],
)
def test_what_is_asked_wrongly_is_named(
    arguments: dict[str, str], error: type[CamError], words: str
) -> None:
    model = small()
    with pytest.raises(error, match=words):
        explain(model, images(), **arguments)  # type: ignore[arg-type]
    assert hook_count(model) == 0


def test_a_model_without_logits_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(2))
    with pytest.raises(NotLogits, match=r"\(1, 3, 64\), not logits of shape \(batch, classes\)"):
        explain(model, images(), layer="0")


def test_a_model_in_training_is_explained_in_eval_mode_and_left_training() -> None:
    model, x = small(), images()
    expected = explain(model, x, layer="conv2")
    model.train()
    model.relu1.eval()
    found = explain(model, x, layer="conv2")
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a.map, b.map)
    modes = {name: module.training for name, module in model.named_modules()}
    assert modes.pop("relu1") is False
    assert all(modes.values())


STEPS = [
    name
    for name, method in METHODS.items()
    if method.formula == "steps" and name not in (*ATTENDING, *DETECTING, "lrp")
]


@pytest.mark.parametrize("method", STEPS)
def test_every_pass_of_many_is_in_eval_mode(method: str) -> None:
    """In training the dropout would change each pass, and each pass the normalisation."""

    def build() -> nn.Module:
        torch.manual_seed(0)
        model = small()
        model.relu1 = nn.Sequential(nn.BatchNorm2d(4), nn.ReLU())  # type: ignore[assignment]
        return model.eval()

    asked: dict[str, Any] = {"target": 1, "method": method, "layer": "relu2", "budget": 20}
    (expected,) = explain(build(), images(1), **asked)
    model = build().train()
    (found,) = explain(model, images(1), **asked)
    np.testing.assert_array_equal(found.map, expected.map)
    assert all(module.training for module in model.modules())
    for name, value in build().state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=0, atol=0)


@pytest.mark.slow
def test_the_model_after_a_thousand_explanations_a_hundred_of_them_failing() -> None:
    torch.manual_seed(0)
    model = torchvision.models.squeezenet1_1().eval()
    before = {name: p.clone() for name, p in model.named_parameters()}
    x = images(1, size=64)
    poisoned = torch.full_like(x, math.inf)
    memory = []
    for turn in range(1000):
        if turn % 10 == 9:
            wrong = (
                {"images": poisoned},
                {"images": x, "layer": "nowhere"},
                {"images": x, "target": 1000},
            )[turn // 10 % 3]
            with pytest.raises(CamError):
                explain(model, **{"layer": "features", **wrong})  # type: ignore[arg-type]
        else:
            explain(model, x, layer="features", target=turn % 1000)
        if turn in (199, 999):
            gc.collect()
            memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert memory[1] <= memory[0] * 1.05, memory
    assert hook_count(model) == 0
    assert not model.training
    assert torch.is_grad_enabled()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        assert parameter.requires_grad
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)


def test_what_one_asks_in_vain_is_not_its_neighbours_error() -> None:
    """A target before its layer, one beside it, and one that the method cannot compare."""
    model, x = Fork().eval(), images(4)
    questions = [
        Question((ClassTarget(1), ClassTarget(2)), "gradcam", ("conv2",)),
        Question((UnitTarget("side", 0), UnitTarget("side", 1)), "gradcam", ("conv1",)),
        Question((UnitTarget("conv1", 0),), "gradcam", ("conv2",)),
        Question((ClassTarget(1, minus=2),), "finercam", ("conv2",)),
    ]
    good, other, before, minus = explain_batch(model, x, questions)
    for at, found in ((0, good), (1, other)):
        assert isinstance(found, ExplainedImage)
        (alone,) = explain_batch(model, x[at : at + 1], [questions[at]])
        assert isinstance(alone, ExplainedImage)
        for mine, theirs in zip(found.explanations, alone.explanations, strict=True):
            assert np.ptp(theirs.map) > 0
            np.testing.assert_allclose(mine.map, theirs.map, rtol=1e-4, atol=1e-7)
    assert isinstance(minus, MethodUnsuited)
    # Its neighbour's target reached that layer, its own has no gradient there …
    assert isinstance(before, ExplainedImage)
    assert not before.explanations[0].map.any()
    # … and alone it is told so.
    (alone,) = explain_batch(model, x[2:3], [questions[2]])
    assert isinstance(alone, NoGradientPath)


def test_the_automatic_layer_passes_over_what_is_no_activation() -> None:
    (found,) = explain(Fork().eval(), images(1), target=1)
    assert found.layer == "relu2"


@pytest.mark.parametrize("method", ["integratedgradients", "fullgrad", "occlusion", "gradcam"])
def test_an_image_that_wants_a_gradient_gets_none(method: str) -> None:
    x = images(1).requires_grad_()
    (found,) = explain(small(), x, target=1, method=method)
    (plain,) = explain(small(), x.detach(), target=1, method=method)
    np.testing.assert_array_equal(found.map, plain.map)
    assert x.grad is None


def test_a_layer_without_a_gradient_is_named_beside_one_that_has_it() -> None:
    """Never a quiet black picture: the last rectifier lets nothing back."""

    def forward(x: Tensor, **parts: nn.Module) -> Any:
        x = parts["stem"](x)
        dead = parts["relu"](parts["side"](x) - 100)
        return parts["head"](means(x + dead))

    torch.manual_seed(0)
    model = Net(
        forward,
        stem=nn.Conv2d(3, 4, 3, padding=1),
        side=nn.Conv2d(4, 4, 1),
        relu=nn.ReLU(),
        head=nn.Linear(4, 2),
    ).eval()
    for method in ("gradcam", "hirescam", "layercam"):
        dead, alive = explain(model, images(1), target=1, method=method, layer=["side", "stem"])
        assert not dead.map.any()
        assert not dead.reached
        (warning,) = dead.warnings
        assert warning == (
            "the score has no gradient at the positions of layer 'side', so the map is empty; "
            "layer 'stem' has one"
        )
        assert alive.reached
        assert alive.warnings == ()
    (free,) = explain(model, images(1), method="fem", layer="side")
    assert free.reached
    assert free.warnings == (METHODS["fem"].warning,)


@pytest.mark.slow
def test_a_layer_whose_class_token_alone_has_a_gradient_is_not_named() -> None:
    """Behind the last attention nothing but the class token is read: no layer there has a map."""
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=96).eval()
    for layer in ("norm", "blocks.11"):
        (found,) = explain(model, torch.rand(1, 3, 96, 96), target=1, layer=layer)
        assert not found.map.any()
        (warning,) = found.warnings
        assert f"positions of layer '{layer}', so the map is empty" in warning
        _, _, other = warning.partition("; layer '")
        named = other.partition("'")[0]
        (alive,) = explain(model, torch.rand(1, 3, 96, 96), target=1, layer=named)
        assert alive.reached, warning


@pytest.mark.parametrize(
    ("signed", "method", "told"),
    [
        (False, "gradcam", "gradcam finds nothing at layer '1' that speaks for class 1; signed"),
        (False, "layercam", "layercam finds nothing at layer '1' that speaks for class 1"),
        (True, "gradcam", ""),
        (False, "eigencam", ""),
    ],
)
def test_a_map_that_is_zero_everywhere_says_so(signed: bool, method: str, told: str) -> None:
    """All evidence speaks against the class: its weights are negative, and activations are not."""
    torch.manual_seed(0)
    head = nn.Linear(8, 2)
    head.weight.data[1] = -head.weight.data[1].abs()
    parts = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head]
    model, x = nn.Sequential(*parts).eval(), torch.rand(1, 3, 16, 16)
    (found,) = explain(model, x, target=1, method=method, signed=signed)
    said = [each for each in found.warnings if "is zero everywhere" in each]
    assert bool(said) == bool(told) == (not found.map.any())
    assert told in "".join(said)


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ((12, 12), ""),
        ((8, 7), ""),
        ((6, 5), "3 × 3 positions: the map tells thirds of the image apart, and no more"),
        ((4, 12), "2 × 6 positions: the map tells halves of the image apart, and no more"),
        ((2, 8), "1 × 4 positions: the map tells places apart along one side"),
    ],
)
def test_a_map_of_few_positions_says_how_little_it_tells(size: tuple[int, int], told: str) -> None:
    """`Small`'s last layer has half the positions of its input."""
    model, x = small(), torch.rand(1, 3, *size)
    for method in ("gradcam", "eigencam", "scorecam"):
        (found,) = explain(model, x, target=1, method=method, layer="relu2")
        said = [each for each in found.warnings if "positions: " in each]
        assert bool(said) == bool(told), found.warnings
        assert told in "".join(said)
        (finer,) = explain(model, x, target=1, method=method, layer="relu1")
        assert not [each for each in finer.warnings if "positions: " in each] or min(size) < 4
    (found,) = explain(model, x, target=1, method="occlusion")
    assert not [each for each in found.warnings if "positions: " in each]
