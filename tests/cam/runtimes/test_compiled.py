"""The fast path beside the plain one, compiled and not."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn

from cam import ClassTarget, ExplainedImage, Question, UnitTarget, explain_batch
from cam.errors import ClassOutOfRange, LayerNotSpatial
from cam.hooks.grids import Grid
from cam.methods.head import pooled_head
from cam.passes.compiled_path import CompiledPath
from cam.passes.layout import laid_out
from cam.runtimes.compiled import FastPath
from cam.runtimes.fidelity import likeness, roundings_apart
from tests.zoo.convolutional import segmenter, small
from tests.zoo.parts import Net, hook_count, images, means
from tests.zoo.transformers import of_timm

compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="there is no compiler"
)


def questions(layer: str, box: tuple[float, float, float, float] | None = None) -> list[Question]:
    return [
        Question((ClassTarget(box=box),), "gradcam", (layer,), signed=True),
        Question((ClassTarget(1, box=box), ClassTarget(0, minus=2, box=box)), "layercam", (layer,)),
        Question((ClassTarget(2, of="probability", box=box),), "hirescam", (layer,), signed=True),
    ]


def compare(fast: CompiledPath, model: nn.Module, size: int, least: float) -> None:
    x, told = images(3, size=size), 0
    # Without a box a segmenter has no map of a class that wins nowhere.
    box = (8.0, 8.0, 40.0, 40.0) if isinstance(model(x), dict) else None
    asked = questions(fast.layer, box)
    for one, other in zip(fast.explain(x, asked), explain_batch(model, x, asked), strict=True):
        assert isinstance(one, ExplainedImage)
        assert isinstance(other, ExplainedImage)
        for found, expected in zip(one.explanations, other.explanations, strict=True):
            assert found.target.index == expected.target.index
            assert found.map.shape == expected.map.shape
            if expected.map.std() > 0:
                told += 1
                assert np.corrcoef(found.map.ravel(), expected.map.ravel())[0, 1] >= least
            else:
                assert not found.map.any()
            if fast.dtype == torch.float32:
                scale = max(float(np.abs(expected.map).max()), 1e-12)
                assert np.abs(found.map - expected.map).max() <= 1e-4 * scale
    assert told >= 3  # flat maps tell nothing


def uncompiled(run: Any, **_: Any) -> Any:
    """Stands for the compiler: what would be compiled, as it is."""
    return run


def resnet() -> nn.Module:
    model: nn.Module = torchvision.models.resnet18()
    return model


def densenet() -> nn.Module:
    """An in-place rectifier follows the layer."""
    model: nn.Module = torchvision.models.densenet121()
    return model


def lite() -> nn.Module:
    model: nn.Module = timm.create_model("tf_efficientnet_lite0")
    return model


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        (resnet, "layer4"),
        pytest.param(resnet, "layer2", marks=pytest.mark.slow),
        pytest.param(densenet, "features", marks=pytest.mark.slow),
        pytest.param(lite, "bn2", marks=pytest.mark.slow),
        (of_timm, "blocks.2.norm1"),
        pytest.param(segmenter, "backbone.6", marks=pytest.mark.slow),
    ],
)
def test_the_probe_is_the_layer(
    build: Callable[[], nn.Module], layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", uncompiled)
    torch.manual_seed(0)
    model = build().eval()
    fast = FastPath(model, layer, dtype=torch.float32, sizes=[4])
    compare(fast, model, 64, 0.99999)
    assert hook_count(model) == 0


@pytest.mark.slow
@compiler
def test_compiled_it_says_the_same() -> None:
    model = small(inplace=True)
    fast = FastPath(model, "relu2", dtype=torch.float32, sizes=[1, 4])
    compare(fast, model, 8, 0.99999)
    (alone,) = fast.explain(images(1), questions("relu2")[:1])
    assert isinstance(alone, ExplainedImage)


@pytest.mark.slow
@compiler
def test_in_half_precision_the_maps_are_alike() -> None:
    torch.manual_seed(0)
    model = resnet().eval()
    compare(FastPath(model, "layer3", dtype=torch.bfloat16, sizes=[3]), model, 64, 0.98)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=compiler)])
def test_behind_a_pooled_head_nothing_is_differentiated(compiled: bool) -> None:
    model = small(inplace=True)
    head = pooled_head(model, images(1), "relu2", Grid("channels first", 4, 4))
    fast = FastPath(model, "relu2", dtype=torch.float32, sizes=[1, 4], compile=compiled, head=head)
    compare(fast, model, 8, 0.99999)
    (alone,) = fast.explain(images(1), questions("relu2")[:1])
    assert isinstance(alone, ExplainedImage)


@pytest.mark.slow
@compiler
def test_more_sizes_than_the_compiler_recompiles_by_itself() -> None:
    model = small()
    sizes = range(1, 12)
    head = pooled_head(model, images(1), "relu2", Grid("channels first", 4, 4))
    fast = FastPath(model, "relu2", dtype=torch.float32, sizes=sizes, head=head)
    for count in sizes:
        fast.explain(images(count), questions("relu2")[:1] * count)
    with torch.compiler.set_stance("fail_on_recompile"):  # each size was compiled, none again
        for count in sizes:
            fast.explain(images(count), questions("relu2")[:1] * count)


def test_compiled_it_is_kept_only_if_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    def slower(run: Any, **_: Any) -> Any:
        def work(*args: Any) -> Any:
            time.sleep(0.05)
            return run(*args)

        return work

    def broken(run: Any, **_: Any) -> Any:
        def work(*args: Any) -> Any:
            raise RuntimeError("no compiler\nat all")

        return work

    for compiler_, why in (
        (slower, r"^\d+ ms an image compiled, \d+ ms not"),
        (broken, "^no compiler at all"),
    ):
        monkeypatch.setattr(torch, "compile", compiler_)
        model = small()
        fast = FastPath(model, "relu2", dtype=torch.float32, sizes=[1, 4])
        assert re.match(why, fast.settle(images(1)) or "")
        assert not fast.compiled
        compare(fast, model, 8, 0.99999)
    monkeypatch.setattr(torch, "compile", uncompiled)
    monkeypatch.setattr("cam.runtimes.compiled.fastest", lambda work: work() or 1.0)
    fast = FastPath(small(), "relu2", dtype=torch.float32, sizes=[1, 4])
    assert fast.settle(images(1)) is None
    assert fast.compiled


def test_what_it_takes() -> None:
    fast = FastPath(small(), "relu2", dtype=torch.float32, sizes=[1], compile=False)
    target = (ClassTarget(),)
    assert fast.takes(Question(target, "gradcam++", ("relu2",)))
    for other in (
        Question(target, "gradcam", ("relu1",)),
        Question(target, "gradcam", ("relu2", "relu1")),
        Question(target, "scorecam", ("relu2",)),
        Question(target, "gradcam", ("relu2",), smooth="augment"),
        Question(target, "gradcam", ("relu2",), smooth="eigen"),
        Question((UnitTarget("relu2", 1),), "gradcam", ("relu2",)),
        Question((), "gradcam", ("relu2",)),
    ):
        assert not fast.takes(other)


@pytest.mark.parametrize("headed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_several_questions_of_each_image_take_one_forward_pass(
    headed: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", uncompiled)
    model, x = small(), images(3)
    head = pooled_head(model, x[:1], "relu2", Grid("channels first", 4, 4)) if headed else None
    fast = FastPath(model, "relu2", dtype=torch.float32, sizes=[3], compile=compiled, head=head)
    first = questions("relu2")
    second = [Question((ClassTarget(0),), "eigencam", ("relu2",)), *first[:0:-1]]
    apart = [*explain_batch(model, x, first), *explain_batch(model, x, second)]
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    model.head.register_forward_hook(count)
    fast.explain(x, first)  # the probe's shape takes a pass of its own
    together = [
        *zip(explain_batch(model, x, [*first, *second], head=head), apart, strict=True),
        *zip(fast.explain(x, [*first, *second]), apart, strict=True),
    ]
    assert passes == 1
    for one, other in together:
        assert isinstance(one, ExplainedImage)
        assert isinstance(other, ExplainedImage)
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-6)
        for found, expected in zip(one.explanations, other.explanations, strict=True):
            assert (found.method, found.target) == (expected.method, expected.target)
            np.testing.assert_allclose(found.map, expected.map, rtol=1e-3, atol=1e-6)


def test_a_failure_belongs_to_its_item_here_too() -> None:
    fast = FastPath(small(), "relu2", dtype=torch.float32, sizes=[4], compile=False)
    asked = [Question((ClassTarget(index),), "gradcam", ("relu2",)) for index in (0, 7, 1)]
    good, bad, also = fast.explain(images(3), asked)
    assert isinstance(good, ExplainedImage)
    assert isinstance(bad, ClassOutOfRange)
    assert isinstance(also, ExplainedImage)


def test_a_layer_that_returns_no_tensor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", uncompiled)

    model = Net(lambda x, pair: means(pair(x)[0]), pair=Net(lambda x: (x, 1)))
    fast = FastPath(model, "pair", dtype=torch.float32, sizes=[1])
    with pytest.raises(LayerNotSpatial, match="returns a tuple"):
        fast.explain(images(1), [Question((ClassTarget(),), "gradcam", ("pair",))])


def test_the_layout_changes_no_number() -> None:
    model = small()
    x = images(2)
    expected = model(x)
    chosen = laid_out(model, x[:1])
    assert isinstance(chosen, bool)
    torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-6)
    assert not laid_out(nn.Linear(3, 2), torch.zeros(1, 3))


def test_roundings_apart_by_hand() -> None:
    """bfloat16 has an eps of 2^-7, so 3.875 is (4 - 3.875) / (8 / 128) = 2 roundings below 4 where
    the largest logit is -8, and 4 roundings where it is 4."""
    said = torch.tensor(1)
    assert roundings_apart(torch.tensor([4, 3.875, -8]), said, torch.bfloat16) == 2
    assert roundings_apart(torch.tensor([4, 3.875, 0]), said, torch.bfloat16) == 4
    assert roundings_apart(torch.tensor([4, 3.875, 0]), torch.tensor(0), torch.bfloat16) == 0
    pixels = torch.tensor([[4, 1.0], [3.875, 1], [-8, 0]])
    found = roundings_apart(pixels, torch.tensor([1, 1]), torch.bfloat16)
    assert found.tolist() == [2, 0]


def test_likeness_by_hand() -> None:
    """(0, 1) with (0, 2) is 1, with (1, 0) is -1; a flat map is like no other, and two flat ones
    tell nothing."""

    def answer_of(*maps: list[float]) -> ExplainedImage:
        (template,) = explain_batch(small(), images(1), questions("relu2")[:1])
        assert isinstance(template, ExplainedImage)
        (each,) = template.explanations
        drawn = [replace(each, map=np.array([values], np.float32)) for values in maps]
        return ExplainedImage(template.output, tuple(drawn))

    assert likeness(answer_of([0, 1]), answer_of([0, 2])) == pytest.approx(1)
    assert likeness(answer_of([0, 1]), answer_of([1, 0])) == pytest.approx(-1)
    assert likeness(answer_of([0, 1], [0, 1]), answer_of([0, 2], [1, 0])) == pytest.approx(-1)
    assert likeness(answer_of([0, 0]), answer_of([3, 3])) is None
    assert likeness(answer_of([0, 0], [0, 1]), answer_of([3, 3], [0, 2])) == pytest.approx(1)
    assert likeness(answer_of([0, 0]), answer_of([0, 3])) == 0
    with pytest.raises(ClassOutOfRange):
        likeness(answer_of([0, 1]), ClassOutOfRange("no"))
