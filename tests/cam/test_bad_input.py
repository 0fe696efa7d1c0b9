"""Whatever is given to `explain`: an answer, or a CamError whose sentence names what is wrong."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import METHODS, CamError, ClassTarget, Question, UnitTarget, explain, explain_batch
from cam.errors import (
    InvalidImages,
    InvalidOption,
    InvalidTarget,
    LayerDidNotRun,
    NonFinite,
    NotAModule,
    NotLogits,
    UnknownLayer,
    UnknownMethod,
)
from tests.zoo.convolutional import Small, around, small
from tests.zoo.parts import hook_count, images

# --- targets


@pytest.mark.parametrize(
    "kind",
    [
        lambda best: best,
        lambda best: best.to(torch.uint8),
        lambda best: best.numpy(),
        lambda best: best.numpy().astype(np.int32),
    ],
)
def test_an_array_of_classes_has_one_for_each_image(kind: Any) -> None:
    """`target=logits.argmax(1)`."""
    model, x = small(), images(3)
    model.head.weight.data *= torch.tensor([[1.0], [-1.0], [1.0]])
    classes = torch.tensor([2, 0, 1])
    for method in ("gradcam", "occlusion"):
        found = explain(model, x, target=kind(classes), method=method)
        assert [each.target.index for each in found] == [2, 0, 1]
        for row, each in enumerate(found):
            (alone,) = explain(
                model, x[row : row + 1], target=int(classes[row]), layer="relu2", method=method
            )
            np.testing.assert_allclose(each.map, alone.map, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "one", [1, np.int64(1), np.array(1), torch.tensor(1), torch.tensor(1, dtype=torch.uint8)]
)
def test_one_class_of_any_kind_is_every_images(one: Any) -> None:
    model, x = small(), images(2)
    for target in (one, ClassTarget(one)):
        assert [each.target.index for each in explain(model, x, target=target)] == [1, 1]
    several = explain(model, x, target=[one, None, (0)])
    best = model(x).argmax(1).tolist()
    assert [each.target.index for each in several] == [1, best[0], 0, 1, best[1], 0]
    assert type(several[0].target.index) is int


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (torch.tensor([1, 2, 0]), r"shape \(3,\); .* has shape \(2,\)"),
        (np.zeros((2, 3), int), r"shape \(2, 3\); .* has shape \(2,\)"),
        (torch.zeros(0, dtype=torch.long), r"shape \(0,\)"),
        (torch.tensor([1.0, 2.0]), "is a Tensor, not a class, None or a target"),
        (np.array([True, False]), "'True' is a bool"),
        (np.array(["cat", "dog"]), "'cat' is a str_"),
        (torch.tensor([True, False]), "is a Tensor, not a class"),
        (True, "'True' is a bool"),
        (1.0, "'1.0' is a float"),
        ("cat", "no label 'cat'; a class is a whole number"),
        ([[1, 2]], "is a list"),
        ([1, "dog"], "no label 'dog'; a class is a whole number"),
        ([], "the list of targets is empty"),
        ({1}, "is a set"),
        (ClassTarget(1.5), "'1.5' is a float"),  # type: ignore[arg-type]
        (ClassTarget(1, minus="cat"), "'cat' is a str"),  # type: ignore[arg-type]
        (UnitTarget("relu2", None), "'None' is a NoneType, not a channel"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_target_is_named(target: Any, words: str) -> None:
    with pytest.raises(InvalidTarget, match=words):
        explain(small(), images(2), target=target)


# --- images

WRONG_IMAGES: dict[str, tuple[Any, type[CamError], str]] = {
    "empty": (images(2)[:0], InvalidImages, r"\(0, 3, 8, 8\): there is nothing to see"),
    "no channels": (torch.zeros(1, 0, 8, 8), InvalidImages, "nothing to see"),
    "no rows": (torch.zeros(1, 3, 0, 8), InvalidImages, "nothing to see"),
    "one image": (images(1)[0], InvalidImages, r"\(3, 8, 8\), not \(batch, channels, height"),
    "scalar": (torch.tensor(1.0), InvalidImages, r"are \(\), not \(batch"),
    "bytes": (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), InvalidImages, "torch.uint8, not float"),
    "whole": (torch.zeros(1, 3, 8, 8, dtype=torch.long), InvalidImages, "torch.int64, not float"),
    "complex": (torch.zeros(1, 3, 8, 8, dtype=torch.cfloat), InvalidImages, "complex64, not float"),
    "meta": (images(1).to("meta"), InvalidImages, "on the meta device"),
    "sparse": (images(1).to_sparse(), InvalidImages, "of layout torch.sparse_coo"),
    "double": (images(1).double(), InvalidImages, "are torch.float64, the model is torch.float32"),
    "half": (images(1).half(), InvalidImages, "are torch.float16, the model is torch.float32"),
    "array": (images(1).numpy(), InvalidImages, "of float32, not a uint8 array"),
    "list": ([images(1)], InvalidImages, "are a list of Tensor, not"),
    "channels last": (
        images(1).permute(0, 2, 3, 1),
        InvalidImages,
        r"are \(1, 8, 8, 3\), which looks like \(batch, height, width, channels\)",
    ),
    "nothing": (None, InvalidImages, "are a NoneType, not"),
    "nan": (torch.cat([images(1), images(1) * torch.nan]), NonFinite, "image 1 has pixels that"),
    "infinite": (images(1) / 0, NonFinite, "image 0 has pixels that"),
}


@pytest.mark.parametrize("kind", WRONG_IMAGES)
@pytest.mark.parametrize("method", ["gradcam", "rise", "fullgrad"])
def test_wrong_images_are_named(kind: str, method: str) -> None:
    given, error, words = WRONG_IMAGES[kind]
    model = small()
    with pytest.raises(error, match=words):
        explain(model, given, method=method, target=1, budget=4)
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    "given",
    [
        images(2).contiguous(memory_format=torch.channels_last),
        images(2).expand(2, 3, 8, 8).transpose(2, 3).transpose(2, 3),
        torch.stack([images(2)] * 2, -1)[..., 0],
        images(2).requires_grad_(),
        nn.Parameter(images(2)),
    ],
)
def test_images_of_any_layout_with_or_without_a_graph(given: Tensor) -> None:
    found, plain = explain(small(), given), explain(small(), images(2))
    for each, other in zip(found, plain, strict=True):
        np.testing.assert_allclose(each.map, other.map, rtol=1e-5)
    assert given.grad is None


def test_a_model_without_numbers_is_named() -> None:
    with torch.device("meta"):
        model = small()
    with pytest.raises(InvalidImages, match="parameters are on the meta device"):
        explain(model, images(1))


# --- options and layers


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fuse": "avg"}, InvalidOption, "fuse is 'avg'; it can be none, mean, max"),
        ({"fuse": None}, InvalidOption, "fuse is None; it can be"),
        ({"smooth": "noise"}, InvalidOption, "smooth is 'noise'; it can be none, eigen, augment"),
        ({"signed": "yes"}, InvalidOption, "signed is 'yes'; it can be True or False"),
        ({"budget": 0}, InvalidOption, "the budget is 0; it is a whole number .* 1 or more"),
        ({"budget": -3, "method": "rise"}, InvalidOption, "the budget is -3"),
        ({"budget": True}, InvalidOption, "the budget is True"),
        ({"budget": 2.5}, InvalidOption, "the budget is 2.5"),
        ({"budget": "many"}, InvalidOption, "the budget is many"),
        ({"method": "grad-cam"}, UnknownMethod, "no method 'grad-cam'; the methods are gradcam"),
        ({"method": None}, UnknownMethod, "no method None"),
        ({"method": ["gradcam", "cam "]}, UnknownMethod, "no method 'cam '"),
        ({"layer": []}, UnknownLayer, "the list of layers is empty"),
        ({"layer": ["relu2", "relu2"]}, UnknownLayer, "'relu2' is named twice"),
        ({"layer": None}, UnknownLayer, "'None' is not a layer's name, a module or a list of them"),
        ({"layer": 3}, UnknownLayer, "'3' is not a layer's name"),
        ({"layer": ["relu2", 3]}, UnknownLayer, "is not a layer's name"),
        ({"layer": small().relu2}, UnknownLayer, "the ReLU that was given as a layer is not part"),
        ({"layer": ""}, UnknownLayer, "no layer ''"),
        ({"layer": "relu3"}, UnknownLayer, "no layer 'relu3'"),
        ({"layer": "head.weight"}, UnknownLayer, "no layer 'head.weight'"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(
    options: dict[str, Any], error: type[CamError], words: str
) -> None:
    model = small()
    with pytest.raises(error, match=words):
        explain(model, images(1), **options)
    assert hook_count(model) == 0


def test_a_budget_of_numpys_counts() -> None:
    (found,) = explain(small(), images(1), method="rise", budget=np.int64(8))  # type: ignore[arg-type]
    (plain,) = explain(small(), images(1), method="rise", budget=8)
    np.testing.assert_array_equal(found.map, plain.map)


def test_a_question_without_layers_is_named() -> None:
    question = Question((ClassTarget(0),), "gradcam", ())
    with pytest.raises(UnknownLayer, match="gradcam makes maps at layers, and none is named"):
        explain_batch(small(), images(1), [question])


# --- models


def saying(said: Any) -> nn.Module:
    """`small` that says something else."""
    return around(after=lambda logits: said(logits) if callable(said) else said)


SAID: dict[str, Any] = {
    "nothing": None,
    "a number": 3,
    "words": ["cat", "dog"],
    "an empty list": [],
    "an empty tuple": (),
    "a dictionary": {"boxes": 1},
    "classes": lambda logits: logits.argmax(1),
    "a vector": lambda logits: logits[0],
    "a sequence": lambda logits: logits[:, None],
    "no classes": lambda logits: logits[:, :0],
    "too few": lambda logits: logits[:1].expand(len(logits) - 1, -1),
    "too many": lambda logits: torch.cat([logits, logits]),
    "whole numbers": lambda logits: logits.long(),
    "boxes of nobody": lambda logits: (
        [{"boxes": torch.zeros(0, 4), "labels": torch.zeros(0), "scores": torch.zeros(0)}]
        * (len(logits) + 1)
    ),
}


@pytest.mark.parametrize("kind", SAID)
@pytest.mark.parametrize(
    "method", ["gradcam", "rise", "fullgrad", "ablationcam", "smoothgradcam++"]
)
def test_what_says_no_logits_is_refused(kind: str, method: str) -> None:
    model = saying(SAID[kind])
    for layer in ("auto", "relu2"):
        with pytest.raises(NotLogits):
            explain(model, images(2), target=1, method=method, layer=layer, budget=4)
    assert hook_count(model) == 0


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (None, "the model is a NoneType, not a torch.nn.Module"),
        (lambda x: x, "is a function"),
        (Small, "is a type"),
        ("resnet50", "is a str"),
    ],
)
def test_what_is_no_module_is_named(model: Any, words: str) -> None:
    with pytest.raises(NotAModule, match=words):
        explain(model, images(1))


def test_a_container_that_never_runs_is_named() -> None:
    model = small()
    model.parts = nn.ModuleList([model.conv1, model.conv2])

    with pytest.raises(LayerDidNotRun, match="'parts' did not run"):
        explain(model, images(1), layer="parts")


def test_what_the_models_own_forward_raises_stays_its_own() -> None:
    class BrokenError(Exception):
        pass

    def fail(logits: Tensor) -> Tensor:
        raise BrokenError

    model, x = saying(fail).train(), images(1)
    for method in METHODS:
        with pytest.raises((BrokenError, CamError)):
            explain(model, x, method=method, layer="relu2", budget=4)
        assert hook_count(model) == 0
        assert all(module.training for module in model.modules())
        assert torch.is_grad_enabled()
    with pytest.raises(RuntimeError, match="to have 3 channels"):
        explain(model, torch.zeros(1, 5, 8, 8))


# --- all of it

ODD: dict[str, list[Any]] = {
    "model": [*(saying(said) for said in SAID.values()), None, nn.Identity(), nn.Flatten()],
    "images": [each for each, _, _ in WRONG_IMAGES.values()],
    "target": [
        *(-1, 3, 10**30, True, 0.5, "cat", b"1", [], [[]], (), object(), np.nan, np.array([0.5])),
        *(torch.tensor([]), torch.zeros(2, 2), ClassTarget(minus=9), ClassTarget(1, minus=1)),
        *(UnitTarget("relu2", 99), UnitTarget("nowhere", 0), UnitTarget("head", 0)),
        ClassTarget(box=(0, 0, 4, 4)),
        ClassTarget(mask=np.ones((8, 8), bool)),
    ],
    "method": [*METHODS, None, 3, "", "GRADCAM", ["gradcam"], b"gradcam"],
    "layer": [None, 3, "", [], [""], ["auto", "auto"], "dropout", "head", "*", {"relu2"}, b"relu2"],
    "budget": [0, -1, 1, 2, True, 1.5, "1", [1], np.nan, np.array([1, 2])],
    "signed": [None, 1, "yes"],
    "smooth": [None, 1, "all", "eigen", "augment", "both", ["eigen"]],
    "fuse": [None, "avg", "sum", 1, "mean", ["max"]],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_nothing_raw_escapes(name: str) -> None:
    """Each odd value of each argument, for methods of each kind."""
    for method in ("gradcam", "eigencam", "scorecam", "rise", "gradient", "fullgrad", "rollout"):
        for value in ODD[name]:
            given: dict[str, Any] = {
                "model": small(),
                "images": images(2),
                "method": method,
                "budget": 2,
                name: value,
            }
            said = "an answer"
            try:
                assert all(np.isfinite(each.map).all() for each in explain(**given))
            except CamError as error:
                said = str(error)
            assert said.strip()
            assert "\n" not in said
            assert len(said) < 700


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("grad-cam", "gradcam"),
        ("GradCAM", "gradcam"),
        ("Grad-CAM++", "gradcam++"),
        ("score_cam", "scorecam"),
        ("Integrated Gradients", "integratedgradients"),
    ],
)
def test_a_method_is_suggested_whatever_its_case_and_hyphens(asked: str, meant: str) -> None:
    with pytest.raises(UnknownMethod, match=re.escape(f"did you mean {meant!r}?")):
        explain(nn.Conv2d(3, 2, 1), torch.rand(1, 3, 8, 8), method=asked)
