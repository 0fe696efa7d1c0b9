"""How outputs are read: one logit, sigmoids, softmaxes inside; tuples, mappings, objects."""

from __future__ import annotations

import math
import re
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import ImageClassifierOutput

from cam import (
    METHODS,
    ClassTarget,
    ExplainedImage,
    Question,
    Reading,
    explain,
    explain_batch,
    factorise,
    observe,
    resolve_reading,
    survey,
)
from cam.errors import ClassOutOfRange, MethodUnsuited, NotLogits, UnsuitedActivation
from cam.hooks.grids import Grid
from cam.methods.head import pooled_head
from cam.outputs.outputs import outputs_of
from cam.outputs.reading import logits_of
from cam.runtimes.compiled import FastPath
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.zoo.by_hand import Headed, Paired, foreground
from tests.zoo.convolutional import small
from tests.zoo.detectors import detector
from tests.zoo.parts import Net, images, wrapped

# The first channel's mean is 1, the others' are 0.
PHOTO = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [0, 0]]]])
SURE = 1 / (1 + math.exp(-9))
assert round(SURE, 5) == 0.99988


def test_a_logit_of_minus_nine_is_the_negative_class() -> None:
    (found,) = explain(Headed(-9), PHOTO, layer="layer")
    assert found.target.index == 0
    assert found.score == pytest.approx(9)
    assert found.probability == pytest.approx(SURE)
    # ∂(−z)/∂A = 9/4 at each of four positions.
    assert found.map.tolist() == [[9, 0], [0, 0]]


@pytest.mark.parametrize(
    ("target", "score", "probability", "corner"),
    [
        (ClassTarget(0), 9, SURE, 9),
        (ClassTarget(1), -9, 1 - SURE, -9),
        (ClassTarget(1, minus=0), -18, 1 - SURE, -18),
        (ClassTarget(1, against=True), 9, 1 - SURE, 9),
        # σ' = p (1 − p).
        (ClassTarget(0, of="probability"), SURE, SURE, 9 * SURE * (1 - SURE)),
        (ClassTarget(1, of="probability"), 1 - SURE, 1 - SURE, -9 * SURE * (1 - SURE)),
    ],
)
def test_the_two_classes_of_one_logit_by_hand(
    target: ClassTarget, score: float, probability: float, corner: float
) -> None:
    (found,) = explain(Headed(-9), PHOTO, target=target, layer="layer", signed=True)
    assert found.score == pytest.approx(score, rel=1e-3)
    assert found.probability == pytest.approx(probability, rel=1e-3)
    assert found.map[0, 0] == pytest.approx(corner, rel=1e-3)


def test_one_logit_has_no_third_class() -> None:
    with pytest.raises(ClassOutOfRange, match=r"class index 2 is out of range; .* classes 0 to 1"):
        explain(Headed(-9), PHOTO, target=2, layer="layer")


def test_labels_that_do_not_exclude_each_other() -> None:
    """0.51 is the first label's, whatever the others say; a softmax would make 0.20 of it."""
    z = math.log(0.51 / 0.49)
    model = Headed(z, z, z, z, z)
    (found,) = explain(model, PHOTO, target=0, layer="layer", activation="sigmoid")
    assert (found.score, found.probability) == pytest.approx((z, 0.51))
    (other,) = explain(model, PHOTO, target=0, layer="layer")
    assert other.probability == pytest.approx(0.2)


def reshaped(z: Tensor) -> Tensor:
    values = z.softmax(1)[:, :, None, None]
    return values.permute(0, 2, 3, 1).contiguous().flatten(1).double().clone()[:, :2]


@pytest.mark.parametrize(
    "ending",
    [
        nn.Softmax(1),
        Net(lambda z: z.log_softmax(1).exp()),
        Net(lambda z: torch.stack([z.softmax(1), (z + 1).softmax(1)]).mean(0)),
        Net(lambda z: (z.softmax(1) + (z + 1).softmax(1)) / 2),
        Net(reshaped),
    ],
    ids=["module", "exp", "ensemble", "sum", "reshaped"],
)
def test_a_softmax_inside_is_not_followed_by_another(ending: nn.Module) -> None:
    model = Headed(math.log(0.51), math.log(0.49), ending=ending)
    for target in (None, ClassTarget(0, of="probability")):
        (found,) = explain(model, PHOTO, target=target, layer="layer")
        assert (found.score, found.probability) == pytest.approx((0.51, 0.51))
    reading, reason = resolve_reading(model, PHOTO)
    assert (reading.activation, reason) == ("none", "the model ends in a softmax")


def test_sigmoids_inside() -> None:
    model = Headed(math.log(0.51 / 0.49), 0, -1, ending=nn.Sigmoid())
    (found,) = explain(model, PHOTO, layer="layer")
    assert found.target.index == 0
    assert found.probability == pytest.approx(0.51)
    assert resolve_reading(model, PHOTO)[1] == "the model ends in a sigmoid"


def test_one_sigmoid_inside_is_the_positive_classs() -> None:
    model = Headed(-9, ending=nn.Sigmoid())
    negative, positive = explain(model, PHOTO, target=[None, 1], layer="layer", signed=True)
    assert negative.target.index == 0
    assert negative.probability == pytest.approx(SURE)
    assert positive.probability == pytest.approx(1 - SURE, rel=1e-3)
    np.testing.assert_allclose(negative.map, -positive.map)
    assert negative.map[0, 0] == pytest.approx(9 * SURE * (1 - SURE), rel=1e-3)


def test_log_probabilities_are_logits() -> None:
    model = Headed(math.log(0.51), math.log(0.49), ending=nn.LogSoftmax(1))
    (found,) = explain(model, PHOTO, layer="layer")
    assert found.probability == pytest.approx(0.51)


def test_a_gate_of_sigmoids_is_no_ending() -> None:
    model = Headed(1, 2, ending=Net(lambda z: z * z.sigmoid()))
    assert resolve_reading(model, PHOTO)[0].activation == "softmax"


@pytest.mark.parametrize(
    ("model", "activation", "reason"),
    [
        (Headed(1), "sigmoid", "the model's output has one logit"),
        (Headed(1, 2), "softmax", "the model has several outputs and does not end in a softmax"),
        (foreground(), "sigmoid", "the model's output has one logit"),
        (detector(), "none", "a detector's scores are probabilities already"),
    ],
    ids=["one", "two", "segmenter", "detector"],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_reading_is_resolved_and_says_why(
    model: nn.Module, activation: str, reason: str, mode: Any
) -> None:
    model.requires_grad_(False).train()
    with mode():
        reading, why = resolve_reading(model, images(1, size=96), Reading())
    assert reading.activation == activation
    assert why.startswith(reason)
    assert model.training
    assert resolve_reading(model, images(1), Reading(activation="sigmoid"))[1] == "it was given"


@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_takes_it_says_the_same_probability(method: str) -> None:
    """Whether it has a graph or not."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)
    ).eval()
    with torch.no_grad():
        model.get_parameter("4.bias").fill_(-2)
    x = images(1)
    with torch.no_grad():
        z = float(model(x)[0, 0])
    p = 1 / (1 + math.exp(-z))
    for ending in (nn.Identity(), nn.Sigmoid()):
        ended = nn.Sequential(model, ending)
        try:
            negative, positive = explain(
                ended, x, target=[0, 1], method=method, layer="0.1", budget=8
            )
        except MethodUnsuited:
            assert method in (*ATTENDING, *DETECTING, "cam", "lrp")
            continue
        assert negative.probability == pytest.approx(1 - p, rel=1e-5)
        assert positive.probability == pytest.approx(p, rel=1e-5)


def test_predictions_alone_are_read_the_same_way() -> None:
    """They run without a graph."""
    question = Question((), "gradcam", ())
    for model in (Headed(-9), Headed(-9, ending=nn.Sigmoid())):
        (answer,) = explain_batch(model, PHOTO, [question])
        assert isinstance(answer, ExplainedImage)
        assert answer.output.probabilities is not None
        assert answer.output.probabilities.tolist() == pytest.approx([SURE, 1 - SURE], rel=1e-3)


def test_a_layer_behind_the_softmax_changes_nothing() -> None:
    """The graph begins at the layer, so it does not show the softmax."""
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Softmax(1))
    x = images(1)
    with torch.no_grad():
        expected = float(model(x)[0, 1].mean())
    mask = np.ones((8, 8), bool)
    for layer in ("0", "1"):
        (found,) = explain(model, x, target=ClassTarget(1, mask=mask), layer=layer)
        assert found.probability == pytest.approx(expected)


def test_occlusion_of_one_logit_by_hand() -> None:
    """Where the window hides the corner, the probability falls from σ(2) to σ(0)."""
    photo = torch.zeros(1, 3, 8, 8)
    photo[0, 0, :4, :4] = 8  # a mean of 2
    positive, negative = explain(
        Headed(1), photo, target=[1, 0], method="occlusion", budget=9, signed=True
    )
    assert positive.probability == pytest.approx(1 / (1 + math.exp(-2)))
    drop = 1 / (1 + math.exp(-2)) - 0.5
    assert positive.map.max() == pytest.approx(drop, rel=1e-5)
    assert positive.map[:2, :2].min() == pytest.approx(drop, rel=1e-5)
    assert positive.map[-2:, -2:].max() == pytest.approx(0, abs=1e-6)
    np.testing.assert_allclose(negative.map, -positive.map, atol=1e-6)


def test_rise_finds_what_one_logit_sees() -> None:
    photo = torch.zeros(1, 3, 32, 32)
    photo[0, 0, 14:18, 14:18] = 384
    # z = 6 − 3 where the middle is seen, −3 where it is hidden.
    model = Headed(1)
    model.ending = nn.Linear(1, 1)
    with torch.no_grad():
        model.ending.weight.fill_(1)
        model.ending.bias.fill_(-3)
    positive, negative = explain(model, photo, target=[1, 0], method="rise", budget=400)
    middle, rest = slice(14, 18), slice(24, None)
    assert positive.map[middle, middle].mean() > 1.3 * positive.map[rest, rest].mean()
    assert negative.map[middle, middle].mean() < 0.8 * negative.map[rest, rest].mean()


def test_a_segmenter_of_one_logit_sees_where_it_is_above_zero() -> None:
    photo = torch.zeros(1, 3, 2, 2)
    photo[0, 0] = torch.tensor([[3.5, 0], [0, 1.5]])
    background, thing = explain(foreground(), photo, target=[0, 1], layer="layer", signed=True)
    assert isinstance(thing.target, ClassTarget)
    assert isinstance(background.target, ClassTarget)
    assert thing.target.mask is not None
    assert background.target.mask is not None
    assert thing.target.mask.tolist() == [[True, False], [False, True]]
    assert background.target.mask.tolist() == [[False, True], [True, False]]
    assert (thing.score, background.score) == pytest.approx((3 + 1, 0.5 + 0.5))
    sigma = [1 / (1 + math.exp(-z)) for z in (3, 1, 0.5)]
    assert thing.probability == pytest.approx((sigma[0] + sigma[1]) / 2)
    assert background.probability == pytest.approx(sigma[2])
    # The mean gradient is ±2/4.
    assert thing.map.tolist() == [[1.75, 0], [0, 0.75]]
    assert background.map.tolist() == [[-1.75, 0], [0, -0.75]]


def test_the_head_of_one_logit_needs_no_graph() -> None:
    model, x = Headed(1.5), images(3)
    head = pooled_head(model, x[:1], "layer", Grid("channels first", 8, 8))
    questions = [
        Question((ClassTarget(), ClassTarget(1)), "gradcam", ("layer",), signed=True),
        Question((ClassTarget(1, minus=0),), "layercam", ("layer",), signed=True),
        Question((ClassTarget(0, of="probability"),), "hirescam", ("layer",), signed=True),
    ]
    cheap = explain_batch(model, x, questions, head=head)
    plain = explain_batch(model, x, questions)
    for one, other in zip(cheap, plain, strict=True):
        assert isinstance(one, ExplainedImage)
        assert isinstance(other, ExplainedImage)
        for found, expected in zip(one.explanations, other.explanations, strict=True):
            assert found.target == expected.target
            assert np.abs(expected.map).max() > 0
            np.testing.assert_allclose(found.map, expected.map, atol=1e-6)
            assert found.probability == pytest.approx(expected.probability)


def test_cam_of_one_logit_by_hand() -> None:
    negative, positive, contrast = explain(
        Headed(-9),
        PHOTO,
        target=[0, 1, ClassTarget(1, minus=0)],
        method="cam",
        layer="layer",
        signed=True,
    )
    assert negative.map.tolist() == [[36, 0], [0, 0]]
    assert positive.map.tolist() == [[-36, 0], [0, 0]]
    assert contrast.map.tolist() == [[-72, 0], [0, 0]]


def test_finercam_of_one_logit_contrasts_its_two_classes() -> None:
    (found,) = explain(Headed(-9), PHOTO, method="finercam", layer="layer")
    assert found.target.index == 0
    assert found.score == pytest.approx(18)
    assert found.map.tolist() == [[18, 0], [0, 0]]


def test_the_layers_of_one_logit_are_those_of_two() -> None:
    """That two classes cancel out does not hide on which tokens a layer's score depends."""

    def survey_of(outputs: int) -> list[tuple[str, str | None]]:
        torch.manual_seed(0)
        model = torchvision.models.VisionTransformer(
            image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32
        ).eval()
        model.heads = nn.Linear(16, outputs)
        layers = survey(model, images(1, size=32))
        return [(each.name, each.problem) for each in layers if each.name.startswith("encoder")]

    assert survey_of(1) == survey_of(2)
    assert "the model's output depends on its class token alone" in dict(survey_of(1)).values()


def test_what_hooks_see_of_one_logit() -> None:
    (found,) = observe(Headed(-9), PHOTO, ["layer"], ClassTarget())
    assert found.gradient is not None
    assert found.gradient[0].tolist() == [[2.25, 2.25], [2.25, 2.25]]  # of −z
    for ending in (nn.Identity(), nn.Sigmoid()):
        (concept,) = factorise(Headed(-9, ending=ending), PHOTO, "layer", 1)
        assert concept.logits is not None
        assert concept.probabilities is not None
        # The concept is 4 at every position, so z is −36.
        assert concept.probabilities.tolist() == pytest.approx([1, 0], abs=1e-5)
        wanted = [36, -36] if isinstance(ending, nn.Identity) else [1, 0]
        assert concept.logits.tolist() == pytest.approx(wanted, abs=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True])
def test_the_fast_path_reads_the_same(compiled: bool) -> None:
    x = images(2)
    for model, reading in (
        (Paired(1.5, -1, 2), Reading(1, "sigmoid")),
        (Paired(1.5), Reading(1, "sigmoid")),
    ):
        question = Question((ClassTarget(0, of="probability"),), "gradcam", ("layer",))
        fast = FastPath(
            model, "layer", dtype=torch.float32, sizes=[2], compile=compiled, reading=reading
        )
        exact = explain_batch(model, x, [question] * 2, reading=reading)
        for one, other in zip(fast.explain(x, [question] * 2), exact, strict=True):
            assert isinstance(one, ExplainedImage)
            assert isinstance(other, ExplainedImage)
            (found,), (expected,) = one.explanations, other.explanations
            assert found.score == found.probability == pytest.approx(expected.score)
            np.testing.assert_allclose(found.map, expected.map, atol=1e-6)


Named = namedtuple("Named", "features scores")
FEATURES, LOGITS, TOKENS = torch.zeros(2, 512), torch.ones(2, 10), torch.zeros(2, 7, 512)


@pytest.mark.parametrize(
    ("raw", "output"),
    [
        ((TOKENS, LOGITS), None),  # the only one that can be
        ((torch.zeros(30, 512), LOGITS), None),  # prototypes: no row for each image
        ((LOGITS, 0), None),
        ((FEATURES, LOGITS), 1),
        ([FEATURES, LOGITS], 1),
        (Named(FEATURES, LOGITS), "scores"),
        (Named(FEATURES, LOGITS), 1),
        ({"features": FEATURES, "scores": LOGITS}, "scores"),
        ({"features": FEATURES, "scores": LOGITS}, 1),
        ({"features": FEATURES, "logits": LOGITS}, None),
        ({"features": LOGITS, "logits": FEATURES}, "features"),
        ({"aux": FEATURES[:, :, None, None], "out": LOGITS[:, :, None, None]}, None),
        (SimpleNamespace(features=FEATURES, scores=LOGITS), "scores"),
        (SimpleNamespace(features=FEATURES, logits=LOGITS), None),
        (SimpleNamespace(tokens=TOKENS, scores=LOGITS), None),
        (ImageClassifierOutput(logits=LOGITS, hidden_states=(FEATURES,)), None),
    ],
)
def test_where_the_logits_are(raw: Any, output: str | int | None) -> None:
    found = logits_of(raw, Reading(output), batch=2)
    assert found.flatten(1).equal(LOGITS)
    assert [each.kind for each in outputs_of(raw, reading=Reading(output), batch=2)] == (
        ["classes" if found.ndim == 2 else "segments"] * 2
    )


@pytest.mark.parametrize(
    ("raw", "output", "words"),
    [
        (
            (FEATURES, LOGITS),
            None,
            r"2 tensors that could be its logits: 0 of shape \(2, 512\), 1 of shape \(2, 10\); say",
        ),
        ({"a": FEATURES, "b": LOGITS}, None, r"a of shape \(2, 512\), b of shape \(2, 10\)"),
        ((FEATURES, LOGITS), 2, "has no 2: it is a tuple with 0, 1"),
        ({"a": FEATURES, "b": LOGITS}, "c", "has no 'c': it is a dict with a, b"),
        (SimpleNamespace(a=FEATURES), "c", "has no 'c': it is a SimpleNamespace with a"),
        (LOGITS, 1, "the model's output is one tensor and has no 1; leave out output"),
        ((TOKENS, LOGITS), 0, r"the model's output is \(2, 7, 512\), not logits of shape"),
        ((TOKENS, 3), None, "the model's output is tuple, not logits of shape"),
    ],
)
def test_what_nobody_can_tell_is_refused(raw: Any, output: Any, words: str) -> None:
    with pytest.raises(NotLogits, match=words):
        logits_of(raw, Reading(output), batch=2)


@pytest.mark.parametrize(
    "method", ["gradcam", "cam", "occlusion", "ablationcam", "finercam", "integratedgradients"]
)
def test_features_beside_logits(method: str) -> None:
    """What is explained is the logits, whichever way the model is run."""
    x = images(1)
    with pytest.raises(NotLogits, match=r"0 of shape \(1, 3\), 1 of shape \(1, 4\)"):
        explain(Paired(1, -2, 3, 4), x, method=method, layer="layer")
    (found,) = explain(Paired(1, -2, 3, 4), x, method=method, layer="auto", output=1, budget=16)
    (wanted,) = explain(Headed(1, -2, 3, 4), x, method=method, layer="layer", budget=16)
    np.testing.assert_allclose(found.map, wanted.map, atol=1e-6)
    assert found.target == wanted.target
    assert found.score == pytest.approx(wanted.score)


def test_test_time_augmentation_reads_the_same() -> None:
    (found,) = explain(Paired(-9), PHOTO, layer="layer", output=1, smooth="augment")
    assert found.target.index == 0
    assert found.probability == pytest.approx(SURE)


@pytest.mark.slow
def test_masks_of_queries_say_how_they_can_be_read() -> None:
    """Of Mask2Former, whose last projection is an identity of what its masks are made from, too,
    and which this decoder does not use."""
    backbone = transformers.SwinConfig(
        image_size=64,
        embed_dim=8,
        depths=[1, 1, 1, 1],
        num_heads=[1, 1, 1, 1],
        window_size=4,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )
    widths = ("feature_size", "mask_feature_size", "hidden_dim", "dim_feedforward")
    configuration = transformers.Mask2FormerConfig(
        backbone_config=backbone,
        **dict.fromkeys(widths, 32),
        encoder_feedforward_dim=32,
        encoder_layers=1,
        decoder_layers=2,
        num_attention_heads=2,
        num_queries=7,
        num_labels=5,
    )
    torch.manual_seed(0)
    model = transformers.Mask2FormerForUniversalSegmentation(configuration).eval()
    x = images(1, size=64)
    with pytest.raises(NotLogits, match="put the model into a module that returns") as error:
        explain(model, x)
    code = re.search(r"torch\.einsum\(.*\.sigmoid\(\)\)", str(error.value))
    assert code
    product = code[0]

    assert "output='masks_queries_logits' and activation='sigmoid'" in str(error.value)
    (query,) = explain(model, x, output="masks_queries_logits", activation="sigmoid")
    classes = wrapped(model, after=lambda said: eval(product, {"torch": torch, "said": said}))
    (of_class,) = explain(classes, x, target=3)
    for found in (query, of_class):
        assert found.map.max() > 0
        (few,) = found.warnings
        assert few.startswith("2 × 2 positions: ")


def test_an_activation_that_cannot_be() -> None:
    with pytest.raises(
        UnsuitedActivation,
        match="no activation 'relu'; it is one of auto, softmax, sigmoid, none",
    ):
        explain(small(), images(1), layer="relu2", activation="relu")  # type: ignore[arg-type]
    with pytest.raises(UnsuitedActivation, match="softmax of one logit is always 1"):
        explain(Headed(1), PHOTO, layer="layer", activation="softmax")


def test_features_beside_logits_behind_something_of_the_models_own() -> None:
    """What a module before the layer returns may be of a class that nobody can repeat for many
    images; the model is then replayed image by image."""

    class Kept:
        def __init__(self, x: Tensor) -> None:
            self.x = x

    model = Net(lambda x, stem, paired: paired(stem(x).x), stem=Net(Kept), paired=Paired(1, -2))
    (found,) = explain(model, images(1), method="ablationcam", layer="paired.layer", output=1)
    (wanted,) = explain(Headed(1, -2), images(1), method="ablationcam", layer="layer")
    np.testing.assert_allclose(found.map, wanted.map, atol=1e-6)
