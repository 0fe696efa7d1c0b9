"""What outputs mean is told from their values: probabilities, logits, values and features."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling

from cam import (
    METHODS,
    ClassTarget,
    Reading,
    SimilarityTarget,
    UnitTarget,
    embed,
    evaluate,
    explain,
    resolve_reading,
)
from cam.errors import (
    CamError,
    ClassOutOfRange,
    MethodUnsuited,
    NoHead,
    NotLogits,
    SelfContrast,
    TargetMismatch,
    UnsuitedActivation,
)
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.quick import quick
from tests.zoo.by_hand import Headed, regressor
from tests.zoo.convolutional import around, coder, headless, small
from tests.zoo.parts import Net, hook_count, images, means, wrapped

# The first channel's mean is 1, the others' are 0.
PHOTO = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]])
WEIGHTS = (math.log(0.51), math.log(0.29), math.log(0.2))
"""Logits whose softmax is 0.51, 0.29 and 0.20."""


def shares(p: Tensor) -> Tensor:
    return p / p.sum(1, keepdim=True)


def weighted(z: Tensor) -> Tensor:
    """An ensemble of two models that agree, with weights that are learnt."""
    weights = torch.tensor([0.3, 0.7], requires_grad=True)
    return weights[0] * z.softmax(1) + weights[1] * (z + 1).softmax(1)


def hierarchy(z: Tensor) -> Tensor:
    """Two parents, then the two children of each: P(child) = P(parent) P(child | parent)."""
    parents, children = z[:, :2].softmax(1), z[:, 2:].view(-1, 2, 2, *z.shape[2:]).softmax(2)
    return torch.cat([parents, (parents[:, :, None] * children).flatten(1, 2)], 1)


def cumulative(z: Tensor) -> Tensor:
    """P(y > k) of an ordinal regression by thresholds (CORAL)."""
    thresholds = torch.tensor([2.0, 0.5, -1]).view(1, 3, *[1] * (z.ndim - 2))
    return (z[:, :1] + thresholds).sigmoid()


def differences(z: Tensor) -> Tensor:
    """P(y = k) of the same."""
    above = functional.pad(cumulative(z).movedim(1, -1), (1, 0), value=1.0)
    below = functional.pad(cumulative(z).movedim(1, -1), (0, 1), value=0.0)
    return (above - below).movedim(-1, 1)


PROBABILITIES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax.clamp": lambda z: z.softmax(1).clamp(1e-6, 1 - 1e-6),
    "softmax.clamp far from 1": lambda z: z.softmax(1).clamp(0.1, 0.6),
    "weighted ensemble": weighted,
    "renormalised": lambda z: shares(z.sigmoid()),
    "exp/sum": lambda z: shares(z.exp()),
    "sharpened": lambda z: shares(z.softmax(1) ** 2),
    "evidence": lambda z: shares(functional.softplus(z) + 1),
    "hierarchy": hierarchy,
    "cumulative": cumulative,
    "differences": differences,
    "inner differences": lambda z: cumulative(z)[:, :-1] - cumulative(z)[:, 1:],
    "conditional": lambda z: z.sigmoid().cumprod(1),
    "hard sigmoid": functional.hardsigmoid,
    "relu6": lambda z: functional.relu6(z + 3) / 6,
    "sigmoid.clamp": lambda z: z.sigmoid().clamp(1e-4, 1 - 1e-4),
    "1/(1 + exp)": lambda z: 1 / (1 + (-z).exp()),
    "tanh": lambda z: (z.tanh() + 1) / 2,
    "noisy or": lambda z: 1 - (1 - z.sigmoid()).prod(1, keepdim=True).expand_as(z),
    "without the background": lambda z: z.softmax(1)[:, 1:],
}
LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda z: z,
    "log_softmax": lambda z: z.log_softmax(1),
    "temperature": lambda z: z / 30,
    "near a half": lambda z: 0.5 + z / 1000,
    "rectified": lambda z: (z / 1000).relu(),
    "gated": lambda z: z * z.sigmoid(),
    "cosines": lambda z: functional.normalize(z, dim=1).square(),
    "of a bottleneck": lambda z: 20 * z.sigmoid() - 10,
}
"""Scores that are not probabilities. Those near a half, and the rectified ones, are in 0 … 1 for
most images."""


def net(ending: Callable[[Tensor], Any], classes: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(8, classes), Net(ending)),
    )
    return model.eval()


def pixels(ending: Callable[[Tensor], Any], classes: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, classes, 1), Net(ending))


@pytest.mark.parametrize("make", [net, pixels])
@pytest.mark.parametrize("kind", PROBABILITIES)
def test_probabilities_are_served_as_they_are(kind: str, make: Any) -> None:
    model, x = make(PROBABILITIES[kind]).eval(), images(1)
    reading, reason = resolve_reading(model, x)
    assert reading.activation == "none", reason
    with torch.no_grad():
        expected = model(x)[0, 1]
    mask = np.ones((8, 8), bool) if make is pixels else None
    (found,) = explain(model, x, target=ClassTarget(1, mask=mask), layer="0")
    assert found.probability == pytest.approx(float(expected.mean()), rel=1e-5)


@pytest.mark.parametrize("make", [net, pixels])
@pytest.mark.parametrize("kind", sorted(set(LOGITS) - {"cosines", "of a bottleneck"}))
def test_logits_are_no_probabilities(kind: str, make: Any) -> None:
    reading, reason = resolve_reading(make(LOGITS[kind]).eval(), images(1))
    assert (reading.activation, reading.meaning) == ("softmax", "classes"), reason


@pytest.mark.parametrize("kind", ["softmax.clamp", "exp/sum", "weighted ensemble"])
def test_a_softmax_that_is_not_the_last_operation_by_hand(kind: str) -> None:
    (found,) = explain(Headed(*WEIGHTS, ending=Net(PROBABILITIES[kind])), PHOTO, layer="layer")
    assert found.target.index == 0
    assert found.probability == pytest.approx(0.51, rel=1e-5)


@pytest.mark.parametrize("kind", ["hard sigmoid", "relu6", "1/(1 + exp)", "sigmoid.clamp", "tanh"])
def test_one_output_that_is_a_probability(kind: str) -> None:
    model = net(PROBABILITIES[kind], classes=1)
    with torch.no_grad():
        p = float(model(images(1)))
    negative, positive = explain(model, images(1), target=[0, 1], layer="0")
    assert (negative.probability, positive.probability) == pytest.approx((1 - p, p), rel=1e-5)


@pytest.mark.parametrize("make", [net, pixels])
def test_one_logit_near_a_half_is_a_logit(make: Any) -> None:
    """In 0 … 1 for each image that is tried."""
    model = make(LOGITS["near a half"], classes=1).eval()
    assert resolve_reading(model, images(1))[0].activation == "sigmoid"


def test_cosines_between_0_and_1_are_logits() -> None:
    """Of embeddings that all point into one half of the space, as CLIP's do."""

    torch.manual_seed(0)
    image, text = nn.Linear(3, 16), functional.normalize(torch.rand(4, 16), dim=1)
    model = Net(lambda x, image: functional.normalize(image(means(x)), dim=1) @ text.T, image=image)
    with torch.no_grad():
        image.weight.mul_(0.01)
        image.bias.fill_(1.0)
        values = model(images(20))
    assert 0 < values.min() < values.max() < 1
    assert resolve_reading(model, images(1))[0].activation == "softmax"


def test_the_image_that_comes_first_changes_nothing() -> None:
    """The logits of white are in 0 … 1, those of noise are not."""
    for image in (torch.ones(1, 3, 8, 8), images(1), torch.full((1, 3, 8, 8), math.nan)):
        model = Headed(0.1, 0.01)
        assert resolve_reading(model, image)[0].activation == "softmax"
        model = Headed(0.1, 0.01, ending=Net(PROBABILITIES["relu6"]))
        assert resolve_reading(model, image)[0].activation == "none"


def test_it_is_found_out_once_and_leaves_the_model_as_it_was() -> None:
    model = net(PROBABILITIES["relu6"]).train()
    passes: list[int] = []
    model[0].register_forward_hook(lambda *each: passes.append(1))
    hooks, state = hook_count(model), torch.random.get_rng_state()
    first = resolve_reading(model, images(1))
    assert 2 < len(passes) <= 11
    passes.clear()
    assert resolve_reading(model, images(1, seed=2)) == first
    assert not passes
    assert model.training
    assert hook_count(model) == hooks
    assert torch.random.get_rng_state().equal(state)
    model[5] = nn.Identity()  # another model: its outputs are logits
    assert resolve_reading(model, images(1))[0].activation == "softmax"
    assert len(passes) == 1  # one image shows that


def test_torchscript_runs_no_hooks_and_is_told_by_huge_images() -> None:
    for kind, expected in (("relu6", "none"), ("exp/sum", "none"), ("plain", "softmax")):
        ending = {**PROBABILITIES, **LOGITS}[kind]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is old
            traced = torch.jit.trace(net(ending), images(1))  # type: ignore[no-untyped-call]
        assert resolve_reading(traced, images(1))[0].activation == expected


@pytest.mark.parametrize("shape", ["(B,)", "()", "(B, 1, 1, 1)"])
def test_one_logit_in_other_shapes(shape: str) -> None:
    ending: dict[str, Callable[[Tensor], Tensor]] = {
        "(B,)": lambda z: z[:, 0],
        "()": lambda z: z.squeeze(),
        "(B, 1, 1, 1)": lambda z: z[:, :, None, None],
    }
    (found,) = explain(Headed(-9, ending=Net(ending[shape])), PHOTO, layer="layer")
    assert found.target.index == 0
    assert found.score == pytest.approx(9)
    if shape != "()":
        two = torch.cat([PHOTO, -PHOTO])
        first, second = explain(Headed(-9, ending=Net(ending[shape])), two, layer="layer")
        assert first.score == pytest.approx(9)
        assert second.target.index == 1


def test_a_vector_of_another_length_is_refused() -> None:
    with pytest.raises(NotLogits, match=r"output is \(3,\), not logits"):
        explain(Headed(1, 2, 3, ending=Net(lambda z: z.flatten())), PHOTO, layer="layer")


def test_logits_of_one_pixel_are_those_of_a_classifier() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 5, 1)).eval()
    with torch.no_grad():
        expected = model(images(1)).flatten()
    (found,) = explain(model, images(1), layer="0", method="cam")
    assert found.target.index == int(expected.argmax())
    assert found.score == pytest.approx(float(expected.max()))
    assert found.probability == pytest.approx(float(expected.softmax(0).max()))


# Hugging Face's configuration


def vit(problem: str | None, labels: int) -> Any:
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=labels,
        problem_type=problem,
    )
    model = transformers.ViTForImageClassification(config).eval()
    with torch.no_grad():
        model.classifier.weight.mul_(50)
        model.classifier.bias.fill_(2)
    return model


def whole(net: nn.Module) -> nn.Module:
    return net


def inside(net: nn.Module) -> nn.Module:
    return wrapped(net, after=lambda raw: raw.logits)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [whole, inside])
def test_the_configuration_says_what_the_labels_are(wrap: Any) -> None:
    x = images(1, size=32)
    for problem, labels, activation, meaning in (
        (None, 5, "softmax", "classes"),
        ("single_label_classification", 5, "softmax", "classes"),
        ("multi_label_classification", 5, "sigmoid", "classes"),
        ("multi_label_classification", 1, "sigmoid", "classes"),
        ("regression", 1, "none", "value"),
        ("regression", 3, "none", "value"),
    ):
        reading, reason = resolve_reading(wrap(vit(problem, labels)), x)
        assert (reading.activation, reading.meaning) == (activation, meaning)
        assert (repr(problem) in reason) == (activation != "softmax")
    net = vit("multi_label_classification", 5)
    with torch.no_grad():
        z = net(x).logits[0, 2]
    (found,) = explain(wrap(net), x, target=2)
    assert found.probability == pytest.approx(float(z.sigmoid()), rel=1e-5)


def test_the_configuration_is_that_of_the_classifier() -> None:
    """Not of a part that returns something else, nor where probabilities are made behind it."""
    net, x = vit("multi_label_classification", 5), images(1, size=32)
    head = nn.Linear(5, 3)
    other = nn.Sequential(wrapped(net, after=lambda raw: raw.logits), head).eval()
    assert resolve_reading(other, x)[0].activation == "softmax"
    behind = wrapped(net, after=lambda raw: raw.logits.softmax(1)).eval()
    assert resolve_reading(behind, x)[0].activation == "none"


# Values of a regression


def test_a_value_by_hand() -> None:
    """∂y/∂A = 10 w / 4 at each of four positions."""
    value, against = explain(
        regressor(1.5),
        PHOTO,
        target=[None, ClassTarget(against=True)],
        layer="layer",
        signed=True,
        activation="none",
    )
    assert value.score == pytest.approx(55)
    assert value.probability is None
    assert against.score == pytest.approx(-55)
    assert against.probability is None
    assert value.map.tolist() == [[15, 0], [0, 0]]
    assert against.map.tolist() == [[-15, 0], [0, 0]]


def test_a_target_chooses_the_output() -> None:
    model = regressor(1.5, -2, 0.5)
    first, second, less = explain(
        model,
        PHOTO,
        target=[None, 1, ClassTarget(1, minus=2)],
        layer="layer",
        signed=True,
        activation="none",
    )
    assert [each.target.index for each in (first, second, less)] == [0, 1, 1]
    assert (first.score, second.score) == pytest.approx((55, 20))
    assert less.score == pytest.approx(20 - 45)
    assert less.map[0, 0] == pytest.approx(-25)


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        (3, ClassOutOfRange, "output 3 is out of range; the model has outputs 0 to 1"),
        (ClassTarget(0, of="probability"), TargetMismatch, "values, which have no probability"),
        (ClassTarget(1, minus=1), SelfContrast, "output 1 cannot be contrasted with itself"),
        (ClassTarget(0, box=(0, 0, 1, 1)), TargetMismatch, "computes values of whole images"),
    ],
)
def test_what_a_value_does_not_have(target: Any, error: type[CamError], words: str) -> None:
    with pytest.raises(error, match=words):
        explain(regressor(1, 2), PHOTO, target=target, layer="layer", activation="none")


def test_a_rating_is_made_of_a_sigmoid_and_is_a_value() -> None:
    model = Headed(1, ending=Net(lambda z: 1 + 4 * z.sigmoid()))
    (found,) = explain(model, PHOTO, layer="layer")
    assert found.score == pytest.approx(1 + 4 / (1 + math.exp(-1)))
    assert found.probability is None


def test_given_probabilities_remain_probabilities() -> None:
    model = net(PROBABILITIES["relu6"])
    reading, reason = resolve_reading(model, images(1), Reading(activation="none"))
    assert (reading.meaning, reason) == ("classes", "it was given")


def test_pixels_that_are_no_probabilities_are_refused() -> None:
    with pytest.raises(UnsuitedActivation, match="at the pixels are not all in 0 … 1"):
        explain(pixels(LOGITS["plain"]), images(1), layer="0", activation="none")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_explains_a_value_or_says_why_not(method: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)
    ).eval()
    with torch.no_grad():
        model.get_parameter("4.bias").fill_(30)
        expected = float(model(images(1))[0, 1])
    try:
        (found,) = explain(
            model, images(1), target=1, method=method, layer="0", budget=8, activation="none"
        )
    except MethodUnsuited:
        assert method in (*DETECTING, *ATTENDING, "rise", "finercam", "cam")
        return
    assert found.score == pytest.approx(expected, rel=1e-5)
    assert found.probability is None


def test_metrics_compare_probabilities() -> None:
    (found,) = explain(regressor(1), PHOTO, layer="layer", activation="none")
    with pytest.raises(TargetMismatch, match="values, and metrics compare probabilities"):
        evaluate(regressor(1), PHOTO[0], found, reading=Reading(activation="none"))


# Models without a head


def features(wrap: Callable[[Tensor], Any]) -> Net:
    """What `wrap` makes of feature maps (B, 8, 6, 6)."""
    torch.manual_seed(0)
    return wrapped(nn.Conv2d(3, 8, 3), after=wrap).eval()


HEADLESS: dict[str, Callable[[], nn.Module]] = {
    "pooler_output": lambda: features(lambda a: BaseModelOutputWithPooling(a, a.mean((2, 3)))),
    "last_hidden_state": lambda: features(lambda a: BaseModelOutput(a)),
    "image_embeds": lambda: features(lambda a: SimpleNamespace(image_embeds=a.mean((2, 3)))),
    "tokens": lambda: features(lambda a: BaseModelOutput(a.flatten(2).transpose(1, 2))),
    "fc = Identity": headless,
}


@pytest.mark.parametrize("kind", HEADLESS)
def test_features_are_no_classes(kind: str) -> None:
    model = HEADLESS[kind]().eval()
    name, x = ("net", images(1)) if kind != "fc = Identity" else ("layer2", images(1, size=64))
    assert resolve_reading(model, x)[0].meaning == "features"
    with pytest.raises(NoHead, match="no head: it returns features, not scores"):
        explain(model, x, layer=name)
    other = embed(model, x.flip(-1), name)
    like, unit = explain(
        model, x, target=[SimilarityTarget(name, other), UnitTarget(name, 1)], layer=name
    )
    assert np.abs(like.map).max() > 0
    assert unit.probability is None


@pytest.mark.parametrize("read", ["pooler_output", "last_hidden_state"])
def test_the_features_that_a_part_returns_are_no_classes(read: str) -> None:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1])
    model = wrapped(transformers.ResNetModel(config), after=lambda raw: getattr(raw, read)).eval()
    with pytest.raises(NoHead):
        explain(model, images(1, size=64), layer="net.encoder.stages.0")


def timm_without_classes() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model("resnet18", num_classes=0)
    return model


@pytest.mark.parametrize("make", quick([timm_without_classes, headless], [headless]))
def test_the_features_of_a_part_without_a_head_are_no_classes(make: Any) -> None:
    model = wrapped(make(), after=lambda raw: raw).eval()
    with pytest.raises(NoHead):
        explain(model, images(1, size=64), layer="net.layer2")


def without_the_head(parts: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*list(torchvision.models.resnet18(weights=None).children())[:-parts])


def embedding(z: Tensor) -> Tensor:
    return functional.normalize(z, dim=1)


WITHOUT_A_TRACE: dict[str, Callable[[], nn.Module]] = {
    "pooled (512, 1, 1)": lambda: without_the_head(1),
    "pooled and flat": lambda: nn.Sequential(without_the_head(1), nn.Flatten()),
    "maps (512, 2, 2)": lambda: without_the_head(2),
    "MobileNet's maps": lambda: torchvision.models.mobilenet_v3_small().features,
    "a transformer's token": lambda: timm.create_model("test_vit", num_classes=0, img_size=64),
    "length 1": lambda: net(embedding, classes=32),
}


@pytest.mark.parametrize(
    "kind", quick(WITHOUT_A_TRACE, ["pooled and flat", "maps (512, 2, 2)", "length 1"])
)
def test_features_without_a_trace_of_a_head_are_no_classes(kind: str) -> None:
    model, x = WITHOUT_A_TRACE[kind]().eval(), images(1, size=64)
    assert resolve_reading(model, x)[0].meaning == "features"
    given = Reading(activation="softmax")
    assert resolve_reading(model, x, given)[0].meaning != "features"
    with pytest.raises(NoHead, match="if its outputs are scores, set activation"):
        explain(model, x, target=0)


def mean_of_heads(z: Tensor) -> Tensor:
    return (z + z.flip(1)) / 2


CLASSIFIERS: dict[str, Callable[[], nn.Module]] = {
    "a normalisation before the last layer": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 32, 1), nn.AdaptiveAvgPool2d(1)
    ),
    "ten classes behind a normalisation": lambda: nn.Sequential(
        net(lambda z: z, classes=10), nn.BatchNorm1d(10)
    ),
    "squeezenet": lambda: torchvision.models.squeezenet1_1(num_classes=32),
    "several heads": lambda: net(mean_of_heads, classes=32),
}


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_head_without_a_name_is_a_head(kind: str) -> None:
    model = CLASSIFIERS[kind]().eval()
    assert resolve_reading(model, images(1, size=64))[0].meaning == "classes"


JOINED: dict[str, Callable[[Tensor], Tensor]] = {
    "a softmax beside a logit": lambda z: torch.cat([z[:, :4].softmax(1), z[:, 4:]], 1),
    "a sigmoid among logits": lambda z: torch.stack([z[:, 0], z[:, 1].sigmoid(), z[:, 2]], 1),
}


@pytest.mark.parametrize("kind", JOINED)
def test_probabilities_beside_logits_are_refused_unless_an_activation_is_given(kind: str) -> None:
    model = net(JOINED[kind])
    with pytest.raises(UnsuitedActivation, match="some of the model's outputs are probabilities"):
        resolve_reading(model, images(1))
    given = Reading(activation="softmax")
    assert resolve_reading(model, images(1), given)[0].meaning != "features"


def test_a_logsigmoid_is_refused_with_the_remedy() -> None:
    model = Headed(0.5, 0.3, 0.2, ending=Net(functional.logsigmoid)).eval()
    with pytest.raises(UnsuitedActivation, match="let it return what goes into the logsigmoid"):
        explain(model, PHOTO, layer="layer", target=1)


def test_percentages_are_refused_unless_an_activation_is_given() -> None:
    model = Headed(*WEIGHTS, ending=Net(lambda z: 100 * z.softmax(1))).eval()
    with pytest.raises(UnsuitedActivation, match=r"ends in a softmax, .* not in 0 … 1"):
        explain(model, PHOTO, layer="layer", target=1)
    (found,) = explain(model, PHOTO, layer="layer", target=1, activation="softmax")
    assert found.map.shape == (2, 2)


@dataclass(slots=True)
class Slotted:
    scores: Tensor


def test_a_dataclass_with_slots_is_read() -> None:
    model = Headed(*WEIGHTS, ending=Net(Slotted)).eval()
    (found,) = explain(model, PHOTO, layer="layer", target=1)
    (plain,) = explain(Headed(*WEIGHTS).eval(), PHOTO, layer="layer", target=1)
    assert found.probability == plain.probability


def test_a_head_beside_features_is_a_head() -> None:
    """Also an identity behind it, and a name that the caller gives."""
    model = features(lambda a: {"last_hidden_state": a, "scores": a.mean((2, 3))}).eval()
    assert resolve_reading(model, images(1))[0].meaning == "classes"
    model = features(lambda a: {"pooler_output": a.mean((2, 3))}).eval()
    assert resolve_reading(model, images(1), Reading("pooler_output"))[0].meaning == "classes"
    last = small()
    last.head = nn.Sequential(last.head, nn.Identity())  # type: ignore[assignment]
    assert resolve_reading(last, images(1))[0].meaning == "classes"


@pytest.mark.parametrize(
    ("count", "end", "ending"),
    [
        (1, nn.Tanh(), "a tanh"),
        (7, nn.Tanh(), "a tanh"),
        (1, nn.Softplus(), "a softplus"),
        (1, nn.ReLU(), "a rectifier"),
        (4, nn.Softplus(), None),  # the evidence for four classes
        (4, nn.ReLU(), None),
    ],
)
def test_numbers_that_are_no_logits_are_values(
    count: int, end: nn.Module, ending: str | None
) -> None:
    """Weights as after training: the sigmoid of a tanh would be 0.27 … 0.73."""
    torch.manual_seed(0)
    head = nn.Linear(8, count)
    nn.init.normal_(head.weight, 0, 3)
    nn.init.constant_(head.bias, 1.5)
    parts = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model, x = nn.Sequential(*parts, head, end).eval(), images(1)
    (found,) = explain(model, x, target=0)
    reading, reason = resolve_reading(model, x)
    if ending is None:
        assert (reading.activation, reading.meaning) == ("softmax", "classes")
        return
    assert (reading.activation, reading.meaning) == ("none", "value")
    assert f"ends in {ending}" in reason
    assert found.probability is None
    assert found.score == pytest.approx(float(model(x)[0, 0].detach()), rel=1e-4)
    (asked,) = explain(model, x, target=0, activation="sigmoid" if count == 1 else "softmax")
    assert asked.probability is not None


def test_an_age_is_no_logit() -> None:
    """32.8 years would be the class 1 with the probability 1.000, for every face."""

    model, x = around(after=lambda logits: 32.8 + logits[:, :1]), images(1)
    with pytest.raises(UnsuitedActivation, match=r"only output is from 3.* \(none\) or a logit"):
        explain(model, x)
    (found,) = explain(model, x, activation="none")
    assert found.probability is None
    assert found.score == pytest.approx(float(model(x).detach()), rel=1e-4)
    (found,) = explain(model, x, activation="sigmoid")
    assert found.probability == pytest.approx(1.0)


def test_a_picture_is_no_map_of_classes() -> None:
    model, image = coder(), torch.randn(1, 3, 16, 16)
    with pytest.raises(UnsuitedActivation, match=r"the shape of its input, \(3, 16, 16\)"):
        resolve_reading(model, image)
    for reading in (Reading(activation="softmax"), Reading(named=True)):
        assert resolve_reading(model, image, reading)[0].activation == "softmax"
    for other in (coder(4), coder(stride=2)):
        assert resolve_reading(other.eval(), image)[0].meaning == "classes"


def test_a_model_in_training_mode_is_told() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    image = torch.randn(1, 3, 8, 8)
    before = copy.deepcopy(model.state_dict())
    (found,) = explain(model.train(), image)
    (said,) = [each for each in found.warnings if "training mode" in each]
    assert "was evaluated with model.eval()" in said
    assert all(module.training for module in model.modules())
    for name, values in model.state_dict().items():
        assert torch.equal(values, before[name]), name
    (quiet,) = explain(model.eval(), image)
    assert not [each for each in quiet.warnings if "training" in each]
    np.testing.assert_array_equal(found.map, quiet.map)
