"""What an explanation adds to the forward pass does not grow with the batch: operations, each of
which an accelerator has to be told, and reads of single numbers, for each of which it is waited."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from cam import ClassTarget, ExplainedImage, Question, explain_batch
from cam.methods.head import pooled_head
from cam.outputs.reading import Reading
from cam.positions.locate import locate
from tests.zoo.convolutional import segmenter, small
from tests.zoo.parts import images

MOST_USED = (
    *("gradcam", "gradcam++", "hirescam", "elementwise", "layercam", "xgradcam"),
    *("eigencam", "eigengradcam", "kpcacam", "fem", "refinecam"),
)
READS = ("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::item")


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of a block by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.by_name: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.by_name[func.overloadpacket._qualified_op_name] += 1
        return func(*args, **(kwargs or {}))


def counted(model: nn.Module, count: int, question: Question, **given: Any) -> tuple[int, int]:
    """Return the operations and the reads of a batch whose answers are all read."""
    asked, x = [question] * count, images(count, size=given.pop("size", 8))
    explain_batch(model, x, asked, **given)  # finds out where the layer's positions lie
    with Counting() as found:
        answers = list(explain_batch(model, x, asked, **given))
    assert all(isinstance(each, ExplainedImage) and each.explanations for each in answers)
    return sum(found.by_name.values()), sum(found.by_name[name] for name in READS)


def same_for_each_size(model: nn.Module, question: Question, **given: Any) -> None:
    several, *more = (counted(model, count, question, **given) for count in (2, 16, 128))
    assert more == [several] * 2
    alone = counted(model, 1, question, **given)
    assert alone[0] <= several[0]
    assert alone[1] == several[1] <= 2


@pytest.mark.parametrize("method", MOST_USED)
def test_a_methods_operations(method: str) -> None:
    layers = ("relu1", "relu2") if method == "refinecam" else ("relu2",)
    same_for_each_size(small(), Question((ClassTarget(),), method, layers))


@pytest.mark.parametrize(
    "targets",
    [
        (ClassTarget(), ClassTarget(1)),
        (ClassTarget(1, minus=0, against=True),),
        (ClassTarget(of="probability"),),
    ],
)
def test_targets_operations(targets: tuple[ClassTarget, ...]) -> None:
    same_for_each_size(small(), Question(targets, "gradcam", ("relu2",)))


@pytest.mark.parametrize("options", [{"used": True}, {"signed": True}, {"fuse": "mean"}])
def test_options_operations(options: dict[str, Any]) -> None:
    question = Question((ClassTarget(),), "gradcam", ("relu1", "relu2"), **options)
    same_for_each_size(small(), question)


@pytest.mark.slow
def test_the_operations_of_a_segmenters_class() -> None:
    """Of one that is named, and of the one that is predicted at the most pixels."""
    for target in (ClassTarget(1), ClassTarget(background=0)):
        question = Question((target,), "gradcam", ("backbone.6",))
        same_for_each_size(segmenter(), question, size=64)


@pytest.mark.parametrize("meaning", ["value", "classes"])
def test_the_operations_of_a_regression(meaning: Any) -> None:
    reading = Reading(activation="none", meaning=meaning)
    same_for_each_size(small(), Question((ClassTarget(),), "gradcam", ("relu2",)), reading=reading)


def test_the_operations_of_maps_that_need_a_warning() -> None:
    """Of a head of zeros: a warning that the score has no gradient at the layer, and one that 2 × 2
    positions hardly tell places apart. Another layer is looked for in each image alone."""
    model = small()
    question = Question((ClassTarget(),), "eigencam", ("relu2",))
    same_for_each_size(model, question, size=4)
    (answer,) = explain_batch(model, images(1, size=4), [question])
    assert isinstance(answer, ExplainedImage)
    assert "2 × 2 positions" in " ".join(answer.explanations[0].warnings)


@pytest.mark.slow
def test_what_is_added_to_resnet_18() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18(weights=None).eval()
    question = Question((ClassTarget(),), "gradcam", ("layer4",))
    x = images(16, size=64)
    with torch.inference_mode(), Counting() as forward:
        model(x)
    operations, reads = counted(model, 16, question, size=64)
    assert operations - sum(forward.by_name.values()) <= 80
    assert reads == 0
    located = locate(model, x[:1], ["layer4"])
    head = pooled_head(model, x[:1], "layer4", located.found["layer4"].grid)  # type: ignore[arg-type]
    same_for_each_size(model, question, size=64, head=head)
