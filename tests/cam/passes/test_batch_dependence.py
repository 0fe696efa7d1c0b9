"""Whether a model keeps the images of a batch apart: by hand, and of every kind."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import METHODS, ClassTarget, Question, explain, explain_in_steps
from cam.errors import ModelError, NoTargetLayer
from cam.passes.batch_dependence import is_stochastic, sees_company
from cam.passes.stepwise import finish
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.zoo.convolutional import OfModules, Small, around, segmenter, small
from tests.zoo.detectors import detector
from tests.zoo.hostile import Attending, BatchNormed, Dropping, Flattening
from tests.zoo.parts import Net, hook_count, images, means
from tests.zoo.transformers import vit


def batch_mean(x: Tensor, stem: nn.Module) -> Tensor:
    """Logits are each image's mean colour less half of the batch's."""
    colours = means(stem(x))
    return colours - colours.mean(0) / 2


def built(kind: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def test_by_hand() -> None:
    # Of colours c = (0, 1, 2) the copies' mean is c, so the logits are c / 2, of a spread of 1. The
    # others are 1 - 3c and c / 2 - 1: the mean of all three is -c / 2, the logits are 5 c / 4.
    image = torch.tensor([0.0, 1, 2]).view(1, 3, 1, 1).expand(1, 3, 4, 4)
    why = sees_company(Net(batch_mean, stem=nn.Identity()), image, "stem")
    assert why == (
        "the output for an image depends on the others of its batch: it changes by 1.5, of a "
        "spread of 1"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "layer", "sentence"),
    [
        (BatchNormed, "relu2", "the output for an image depends on the others of its batch"),
        (Attending, "relu2", "the output for an image depends on the others of its batch"),
        (Flattening, "relu2", r"the model fails on a batch of 3 images: .*shape"),
        (
            lambda: around(after=lambda logits: logits[:1]),
            "relu2",
            "the model fails on a batch of 3 images: it has 1 output",
        ),
    ],
)
def test_models_whose_images_see_each_other(
    kind: Callable[[], nn.Module], layer: str, sentence: str, dtype: torch.dtype
) -> None:
    why = sees_company(built(kind).to(dtype), images(1).to(dtype), layer)
    assert why
    assert re.match(sentence, why), why


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "layer", "size"),
    [
        (small, "relu2", 8),
        (Dropping, "relu2", 8),
        (vit, "encoder.layers.encoder_layer_2", 64),
        (segmenter, "backbone.6", 64),
        (detector, "backbone.body.13", 96),
    ],
)
def test_models_that_keep_them_apart(
    kind: Callable[[], nn.Module], layer: str, size: int, dtype: torch.dtype
) -> None:
    if kind is detector and dtype == torch.bfloat16:
        pytest.skip("torchvision's detectors are of float32")
    model = built(kind).to(dtype)
    assert sees_company(model, images(1, size=size).to(dtype), layer) is None


def test_a_detector_that_finds_nothing_is_told_by_its_layer() -> None:
    class Blind(BatchNormed):
        def classified(self, x: Tensor) -> list[dict[str, Tensor]]:  # type: ignore[override]
            nothing = {"boxes": x.new_zeros(0, 4), "labels": x.new_zeros(0).long()}
            return [{**nothing, "scores": x.new_zeros(0)} for _ in x]

    why = sees_company(built(Blind), images(1), "relu2")
    assert why
    assert why.startswith("the output of 'relu2' for an image depends")
    assert sees_company(built(Blind), images(1), "conv1") is None


def test_the_model_and_the_random_state_are_left_as_found() -> None:
    model, x = built(Dropping).train(), images(1)
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    sees_company(model, x, "relu2")
    assert all(module.training for module in model.modules())
    assert hook_count(model) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, images(1))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(
    "method",
    [name for name, each in METHODS.items() if each.formula == "steps" and name not in DETECTING],
)
def test_with_chunks_of_one_no_pass_has_two_images(method: str) -> None:
    attending = method in ATTENDING
    model = built(vit if attending else OfModules if method == "lrp" else small)
    layer = "encoder.layers.encoder_layer_2" if attending else "relu2"
    sizes = set()
    first = model.get_submodule("conv_proj" if attending else "conv1")
    handle = first.register_forward_hook(lambda module, args, output: sizes.add(len(output)))
    last = model.get_submodule("heads" if attending else "head")
    other = last.register_forward_hook(lambda module, args, output: sizes.add(len(output)))
    question = Question((ClassTarget(0), ClassTarget(1)), method, (layer,), budget=12)
    image = images(1, size=64 if attending else 8)[0]
    answer = finish(explain_in_steps(model, image, question, chunk=1))
    handle.remove()
    other.remove()
    assert not isinstance(answer, Exception)
    assert sizes == {1}


def test_images_of_a_model_that_mixes_them_are_explained_one_by_one() -> None:
    model, x = built(BatchNormed), images(3)
    together = explain(model, x, method=["gradcam", "hirescam"], layer="relu2", target=1)
    assert len(together) == 6
    for row, image in enumerate(x):
        alone = explain(model, image[None], method=["gradcam", "hirescam"], layer="relu2", target=1)
        for one, other in zip(together[2 * row : 2 * row + 2], alone, strict=True):
            assert one.method == other.method
            np.testing.assert_array_equal(one.map, other.map)
            assert not other.warnings
            (warning,) = one.warnings
            assert re.match("the image was explained alone: the output for an image", warning)


def test_masked_images_of_a_model_that_mixes_them_are_passed_one_by_one() -> None:
    model, x = built(BatchNormed), images(1)
    batches: list[int] = []
    model.register_forward_hook(lambda module, args, output: batches.append(len(args[0])))
    (explanation,) = explain(model, x, method="occlusion", target=1, budget=20)
    assert set(batches[-5:]) == {1}
    assert "explained alone" in explanation.warnings[0]


def test_a_model_that_keeps_images_apart_is_examined_once() -> None:
    model, passes = built(Small), list[int]()
    model.register_forward_hook(lambda module, args, output: passes.append(len(args[0])))
    for _ in range(3):
        found = explain(model, images(2), layer="relu2", target=1)
        assert not any(each.warnings for each in found)
    assert sorted(passes).count(3) == 2  # whether the images are kept apart
    assert sorted(passes).count(2) == 3


@pytest.mark.parametrize("method", ["gradcam", "rise", "gradient"])
def test_a_stochastic_model_is_told_so(method: str) -> None:
    (found,) = explain(built(Dropping), images(1), method=method, layer="relu2", target=1, budget=4)
    assert any(each.startswith("the model is stochastic: two passes") for each in found.warnings)
    (other,) = explain(built(Small), images(1), method=method, layer="relu2", target=1, budget=4)
    assert not any("stochastic" in each for each in other.warnings)


def test_the_check_for_chance_leaves_the_random_state() -> None:
    model = built(Dropping)
    before = torch.random.get_rng_state()
    assert is_stochastic(model, images(1))
    torch.testing.assert_close(torch.random.get_rng_state(), before)


def test_a_program_of_a_fixed_batch_is_explained_one_by_one() -> None:
    x = images(2)
    program = torch.export.export(built(Small), (x[:1],)).module()
    found = explain(program, x, method=["occlusion", "gradient"], target=1, budget=9)
    expected = explain(built(Small), x, method=["occlusion", "gradient"], target=1, budget=9)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.map, other.map, rtol=1e-4, atol=1e-7)
        assert "fails on a batch of 3 images" in one.warnings[0]
    with pytest.raises(NoTargetLayer, match="as in a program of torch"):
        explain(program, x)


def test_a_program_of_batches_of_four_says_so() -> None:
    x = images(4)
    program = torch.export.export(built(Small), (x,)).module()
    for given in (x[:1], x):
        with pytest.raises(ModelError, match=r"Guard failed.*4.*export it for one image"):
            explain(program, given, method="gradient", target=1)
