"""What models say, and targets made of it: masks, boxes, units, likeness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import (
    CamError,
    ClassTarget,
    Output,
    SimilarityTarget,
    Target,
    UnitTarget,
    explain,
    explain_batch,
    survey,
)
from cam.errors import (
    BoxOutside,
    ChannelOutOfRange,
    LayerDidNotRun,
    MaskEmpty,
    NoGradientPath,
    NotLogits,
    TargetMismatch,
    UnknownLayer,
)
from cam.explanation import ExplainedImage, Question
from cam.likeness import embedding_of
from cam.outputs.outputs import outputs_of
from tests.zoo.convolutional import segmenter, small
from tests.zoo.detectors import detector
from tests.zoo.parts import hook_count, images

# Two classes on 2 × 2 pixels; class 0 wins in the top row, class 1 in the bottom row.
SEGMENTS = Output(segments=torch.tensor([[[4.0, 3], [0, 1]], [[1.0, 1], [2, 5]]]))
TOP_LEFT = np.array([[True, False], [False, False]])


@pytest.mark.parametrize(
    ("target", "expected", "index"),
    [
        (ClassTarget(0), 4 + 3, 0),  # where it wins
        (ClassTarget(1), 2 + 5, 1),
        (ClassTarget(0, mask=TOP_LEFT), 4, 0),
        (ClassTarget(0, minus=1, mask=TOP_LEFT), 4 - 1, 0),
        (ClassTarget(1, box=(0, 0, 1, 2)), 1 + 2, 1),  # the left column
        (ClassTarget(0, against=True), -7, 0),
        (ClassTarget(), 7, 0),  # as many pixels each: the first
        (ClassTarget(background=0), 7, 1),
    ],
)
def test_a_segmenters_number_by_hand(target: ClassTarget, expected: float, index: int) -> None:
    resolved = target.resolve(SEGMENTS)
    assert resolved.index == index
    assert float(resolved.score(SEGMENTS)) == pytest.approx(expected)


def test_a_segmenters_probability_is_its_mean_over_the_mask() -> None:
    resolved = ClassTarget(0, mask=TOP_LEFT, of="probability").resolve(SEGMENTS)
    expected = 1 / (1 + np.exp(1 - 4))
    assert float(resolved.score(SEGMENTS)) == pytest.approx(expected)
    assert resolved.probability(SEGMENTS) == pytest.approx(expected)


def test_a_mask_of_another_size_lies_over_the_same_pixels() -> None:
    big = np.zeros((6, 6), bool)
    big[:3, :3] = True
    assert float(ClassTarget(0, mask=big).resolve(SEGMENTS).score(SEGMENTS)) == 4


@pytest.mark.parametrize(
    ("target", "said", "error", "words"),
    [
        (ClassTarget(0, mask=~TOP_LEFT & TOP_LEFT), SEGMENTS, MaskEmpty, "no pixel"),
        (ClassTarget(0, box=(5, 5, 9, 9)), SEGMENTS, BoxOutside, "no pixel of the 2 × 2"),
        (
            ClassTarget(0, box=(0, 0, 1, 1)),
            Output(logits=torch.zeros(3)),
            TargetMismatch,
            "classifies whole images",
        ),
    ],
)
def test_what_cannot_be_asked(
    target: ClassTarget, said: Output, error: type[CamError], words: str
) -> None:
    with pytest.raises(error, match=words):
        target.resolve(said)


def test_a_class_that_wins_nowhere_needs_a_mask() -> None:
    said = Output(segments=torch.tensor([[[1.0, 1]], [[0, 0]]]))
    with pytest.raises(MaskEmpty, match="sees class 1 at no pixel of this image; name a box"):
        ClassTarget(1).resolve(said)


def test_a_box_on_logits_that_are_smaller_than_the_input() -> None:
    said = Output(segments=SEGMENTS.segments, size=(8, 8))
    assert float(ClassTarget(0, box=(0, 0, 4, 4)).resolve(said).score(said)) == 4
    assert float(ClassTarget(0, box=(4, 0, 8, 8)).resolve(said).score(said)) == 3 + 1


def test_every_shape_of_output() -> None:
    """torch-cam's and grad-cam's users meet tuples, dictionaries and objects."""

    class Returned:
        logits = torch.ones(2, 3)

    for raw in (torch.ones(2, 3), (torch.ones(2, 3), 0), {"out": torch.ones(2, 3)}, Returned()):
        found = outputs_of(raw)
        assert [each.kind for each in found] == ["classes"] * 2
    assert outputs_of({"out": torch.ones(1, 3, 4, 4)})[0].kind == "segments"
    for wrong in (torch.ones(2, 3, 4), {"boxes": 1}, [{"boxes": 1}], None, torch.ones(2, 3).long()):
        with pytest.raises(NotLogits, match="not logits of shape"):
            outputs_of(wrong)


def test_a_segmenters_map_is_the_gradient_of_the_masks_sum() -> None:
    model, x = segmenter(), images(2, size=64)
    mask = np.zeros((64, 64), bool)
    mask[:20, 30:] = True
    layer = "backbone.6"
    found = explain(model, x, target=ClassTarget(2, mask=mask), layer=layer, signed=True)
    module = model.get_submodule(layer)
    kept: dict[str, Tensor] = {}
    handle = module.register_forward_hook(lambda m, a, out: kept.update(a=out))
    logits = model(x)["out"]
    handle.remove()
    (gradient,) = torch.autograd.grad(logits[:, 2][:, mask].sum(), kept["a"])
    a = kept["a"].detach()
    expected = (gradient.mean((2, 3), keepdim=True) * a).sum(1).numpy()
    sums = logits.detach()[:, 2][:, mask].sum(1).tolist()
    for each, wanted, total in zip(found, expected, sums, strict=True):
        np.testing.assert_allclose(each.map, wanted, rtol=1e-3, atol=1e-4 * np.abs(wanted).max())
        assert each.score == pytest.approx(total, rel=1e-3, abs=1e-3)
    assert hook_count(model) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "layer"), [(segmenter, "backbone.6"), (detector, "backbone.body.13")]
)
def test_methods_of_many_passes_work_on_them_too(build: Any, layer: str) -> None:
    model, x = build(), images(1, size=96)
    for method in ("occlusion", "integratedgradients", "ablationcam"):
        (found,) = explain(model, x, method=method, budget=4, layer=layer)
        assert np.isfinite(found.map).all()
    assert layer in [each.name for each in survey(model, x) if each.explainable]


def test_a_unit_by_hand() -> None:
    """y is one channel's mean, so its gradient at the layer itself is 1/(hw) there, 0 elsewhere."""
    model, x = small(), images(2)
    found = explain(model, x, target=UnitTarget("relu2", 3), layer="relu2", method="hirescam")
    activations = model.relu2(model.conv2(model.relu1(model.conv1(x)))).detach().numpy()
    for row, each in enumerate(found):
        np.testing.assert_allclose(each.map, activations[row, 3] / 16, rtol=1e-5)
        assert each.score == pytest.approx(activations[row, 3].mean(), rel=1e-5)
        assert each.probability is None
        assert each.target.index is None


def test_a_unit_of_a_vector_and_of_tokens() -> None:
    model, x = small(), images(1)
    (unit,) = explain(model, x, target=UnitTarget("head", 1), layer="relu2")
    (logit,) = explain(model, x, target=1, layer="relu2")
    np.testing.assert_allclose(unit.map, logit.map, rtol=1e-5)


def test_likeness() -> None:
    model, x = small(seed=2), images(2, seed=5)
    with torch.no_grad():
        maps = model.relu2(model.conv2(model.relu1(model.conv1(x))))
    other = embedding_of(maps[1])
    target = SimilarityTarget("relu2", other.numpy())
    first, same = explain(model, x, target=target, layer="relu1", signed=True)
    mine = maps[0].mean((1, 2))
    expected = float(torch.nn.functional.cosine_similarity(mine, other, dim=0))
    assert first.score == pytest.approx(expected, rel=1e-5)
    assert same.score == pytest.approx(1, rel=1e-5)
    # At its greatest, likeness has no slope.
    assert np.abs(same.map).max() < 1e-4 * np.abs(first.map).max()


@pytest.mark.parametrize(
    ("target", "layer", "error", "words"),
    [
        (UnitTarget("relu2", 5), "conv1", ChannelOutOfRange, "has channels 0 to 4"),
        (UnitTarget("relu9", 5), "conv1", UnknownLayer, "no layer 'relu9'"),
        (UnitTarget("conv1", 0), "relu2", NoGradientPath, "does not depend on layer 'relu2'"),
    ],
)
def test_a_unit_that_cannot_be(
    target: UnitTarget, layer: str, error: type[CamError], words: str
) -> None:
    model = small()
    with pytest.raises(error, match=words):
        explain(model, images(1), target=target, layer=layer)
    assert hook_count(model) == 0


def test_a_unit_that_did_not_run() -> None:
    model = small()
    model.add_module("spare", nn.ReLU())
    with pytest.raises(LayerDidNotRun, match="'spare' returned no tensor"):
        explain(model, images(1), target=UnitTarget("spare", 0), layer="conv1")


def test_targets_of_every_kind_in_one_batch_are_each_images_own() -> None:
    """torch-cam #79, grad-cam #307: one target per image."""
    model, x = small(), images(3)
    targets: list[Target] = [ClassTarget(2), UnitTarget("relu2", 1), ClassTarget(0, minus=1)]
    questions = [Question((target,), "layercam", ("relu1",)) for target in targets]
    for row, answer in enumerate(explain_batch(model, x, questions)):
        assert isinstance(answer, ExplainedImage)
        (alone,) = explain(
            model, x[row : row + 1], target=targets[row], method="layercam", layer="relu1"
        )
        np.testing.assert_allclose(answer.explanations[0].map, alone.map, rtol=1e-5)


def test_a_unit_before_a_rectifier_that_works_in_place() -> None:
    """What the layer said, not what became of it."""
    x = images(1)
    (kept,) = explain(small(), x, target=UnitTarget("conv1", 0), layer="conv1", method="hirescam")
    (changed,) = explain(
        small(inplace=True), x, target=UnitTarget("conv1", 0), layer="conv1", method="hirescam"
    )
    assert changed.score == kept.score
