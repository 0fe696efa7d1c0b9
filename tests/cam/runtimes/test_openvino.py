"""The path by OpenVINO beside the exact one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import ClassTarget, Question, explain_batch
from cam.errors import CamError
from cam.hooks.grids import Grid
from cam.methods.head import pooled_head
from cam.outputs.meaning import resolve_reading
from cam.runtimes.fidelity import judge
from cam.runtimes.openvino import OpenVinoPath
from tests.cam.runtimes.test_compiled import compare
from tests.zoo.convolutional import Small, segmenter, small
from tests.zoo.hostile import branching
from tests.zoo.parts import hook_count, images
from tests.zoo.transformers import of_timm

pytest.importorskip("openvino")


def path_of(model: nn.Module, layer: str, size: int, *, dtype: torch.dtype) -> OpenVinoPath:
    reading, _ = resolve_reading(model, images(1, size=size))
    path = OpenVinoPath(model, layer, dtype=dtype, sizes=[1, 3], reading=reading)
    assert path.settle(images(1, size=size)) is None
    return path


@pytest.mark.parametrize(
    ("build", "layer", "size"),
    [
        (lambda: small(inplace=True), "relu1", 8),
        pytest.param(of_timm, "blocks.2.norm1", 64, marks=pytest.mark.slow),
        pytest.param(segmenter, "backbone.6", 64, marks=pytest.mark.slow),
    ],
)
def test_the_maps_are_the_exact_ones(build: Callable[[], nn.Module], layer: str, size: int) -> None:
    torch.manual_seed(0)
    model = build().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = path_of(model, layer, size, dtype=torch.float32)
    compare(path, model, size, 0.99999)
    assert hook_count(model) == 0
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def with_head(dtype: torch.dtype) -> tuple[Small, OpenVinoPath]:
    model = small(inplace=True)
    head = pooled_head(model, images(1), "relu2", Grid("channels first", 4, 4))
    path = OpenVinoPath(model, "relu2", dtype=dtype, sizes=[1, 4], head=head)
    path.settle(images(1))
    return model, path


def test_behind_a_pooled_head_pytorch_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = with_head(torch.float32)
    compare(path, model, 8, 0.99999)
    monkeypatch.setattr(Small, "forward", None)
    for count in (1, 2, 5):
        question = Question((ClassTarget(1),), "gradcam", ("relu2",))
        found = path.explain(images(count), [question] * count)
        assert not any(isinstance(each, CamError) for each in found)


def test_the_answers_of_a_batch_outlive_the_next_one() -> None:
    """OpenVINO writes each batch's outputs into the same memory."""
    _, path = with_head(torch.float32)
    question = [Question((ClassTarget(1),), "gradcam", ("relu2",))]
    (first,) = path.explain(images(1, seed=1), question)
    assert not isinstance(first, CamError)
    kept = first.explanations[0].map.copy(), first.logits.copy()
    path.explain(images(1, seed=2), question)
    np.testing.assert_array_equal(first.explanations[0].map, kept[0])
    np.testing.assert_array_equal(first.logits, kept[1])


@pytest.mark.slow
def test_the_judge_tells_rounding_from_half_precision() -> None:
    model, path = with_head(torch.float32)
    methods = ["gradcam", "layercam"]

    def exact(asked: Tensor, questions: list[Question]) -> object:
        return explain_batch(model, asked, questions)

    found = judge(path, exact, images(7), methods)  # type: ignore[arg-type]
    assert all(each.exact and each.difference <= 1e-4 for each in found.values())
    _, half = with_head(torch.bfloat16)
    found = judge(half, exact, images(7), methods)  # type: ignore[arg-type]
    if any(each.difference > 1e-4 for each in found.values()):  # else it computed in float32
        assert not any(each.exact for each in found.values() if each.difference > 1e-4)


def test_a_model_that_branches_on_its_input_is_refused() -> None:
    path = OpenVinoPath(branching(), "relu2", dtype=torch.float32, sizes=[1])
    with pytest.raises(Exception, match="data-dependent"):
        path.settle(images(1))
