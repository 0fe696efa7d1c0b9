"""A model's output taken apart, image by image: each kind, each container, each refusal."""

from __future__ import annotations

import math
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cam import Detections, Output, Reading, resolve_reading
from cam.errors import LayerDidNotRun, NotLogits, UnknownLayer
from cam.hooks.grids import Grid, Located, Location
from cam.outputs.outputs import looked_at, outputs_of, size_of, total, watching
from cam.outputs.reading import Activation, logits_of
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, hook_count, images


def boxes(count: int, *, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Detections as torchvision's models return them: scores 0.5, 0.25, …"""
    return {
        "boxes": torch.arange(4.0 * count).reshape(count, 4),
        "labels": torch.arange(count),
        "scores": torch.tensor([0.5 ** (rank + 1) for rank in range(count)], dtype=dtype),
    }


def test_classes_row_by_row() -> None:
    raw = torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float16)
    seen = {"a": torch.tensor([[5.0], [6]])}
    first, second = outputs_of(raw, seen, size=(7, 9))
    for each, logits, layer in ((first, [1, 2], [5]), (second, [3, 4], [6])):
        assert each.kind == "classes"
        assert each.logits is not None
        assert each.logits.dtype == torch.float32
        assert each.logits.tolist() == logits
        assert each.segments is None
        assert each.detections is None
        assert each.size == (7, 9)
        assert {name: value.tolist() for name, value in each.layers.items()} == {"a": layer}
    assert outputs_of(raw)[0].size is None


def test_segments_row_by_row() -> None:
    raw = torch.arange(12.0).reshape(2, 3, 1, 2)
    for row, each in enumerate(outputs_of({"out": raw})):
        assert each.kind == "segments"
        assert each.logits is None
        assert each.segments is not None
        torch.testing.assert_close(each.segments, raw[row])


def test_detections_image_by_image() -> None:
    seen = {"a": torch.tensor([[5.0], [6]])}
    found = outputs_of([boxes(2), boxes(1, dtype=torch.float16)], seen, size=(7, 9))
    for row, (each, count) in enumerate(zip(found, (2, 1), strict=True)):
        assert each.kind == "detections"
        assert each.detections is not None
        assert each.detections.boxes.shape == (count, 4)
        assert each.detections.labels.tolist() == list(range(count))
        assert each.detections.scores.tolist() == [0.5, 0.25][:count]
        assert each.detections.scores.dtype == torch.float32
        assert (each.size, each.layers["a"].tolist()) == ((7, 9), [5 + row])


@pytest.mark.parametrize(
    "raw",
    [
        torch.ones(1, 2),
        {"logits": torch.ones(1, 2), "out": torch.zeros(1, 2)},
        OrderedDict(out=torch.ones(1, 2), aux=torch.zeros(1, 2)),
        (torch.ones(1, 2), torch.zeros(1)),
        [torch.zeros(1, 2, 3), torch.ones(1, 2)],
        SimpleNamespace(logits=torch.ones(1, 2), hidden=torch.zeros(1, 2)),
    ],
)
def test_where_logits_are(raw: Any) -> None:
    assert logits_of(raw).tolist() == [[1, 1]]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (torch.ones(3).long(), r"^the model's output is \(3,\), not logits"),
        (torch.ones(2, 3, 4), r"is \(2, 3, 4\), not"),
        (torch.ones(2, 3, 4, 5, 6), r"is \(2, 3, 4, 5, 6\), not"),
        (torch.ones(2, 3).long(), r"is \(2, 3\), not"),
        ({"scores": torch.ones(2, 3, 1)}, "is dict, not"),
        ((), "is tuple, not"),
        ([], "is list, not"),
        ([boxes(1), {"boxes": 1}], "is list, not"),
        (((torch.ones(2, 3),),), "is tuple, not"),
        (SimpleNamespace(hidden=1), "is SimpleNamespace, not"),
        (None, "is NoneType, not"),
    ],
)
def test_what_has_no_logits(raw: Any, words: str) -> None:
    with pytest.raises(NotLogits, match=words):
        outputs_of(raw)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite(wrong: float) -> None:
    spoilt = torch.tensor([0.5, wrong])
    labels = torch.tensor([1, 2])
    right = Detections(torch.ones(2, 4), labels, torch.ones(2))
    places = torch.ones(2, 4)
    places[1, 2] = wrong
    for said in (
        Output(logits=spoilt),
        Output(segments=spoilt[:, None, None]),
        Output(detections=Detections(right.boxes, labels, spoilt)),
        Output(detections=Detections(places, labels, right.scores)),
    ):
        assert not said.finite
    for said in (
        Output(logits=torch.ones(2)),
        Output(segments=torch.ones(2, 1, 1)),
        Output(detections=right),
    ):
        assert said.finite


def test_numbers_are_all_that_a_score_may_be_made_of() -> None:
    right = Detections(torch.ones(2, 4), torch.tensor([1, 2]), torch.ones(2))
    assert [each.shape for each in Output(detections=right).numbers] == [(2,), (2, 4)]
    assert [each.shape for each in Output(logits=torch.ones(3)).numbers] == [(3,)]
    assert [each.shape for each in Output(segments=torch.ones(3, 1, 1)).numbers] == [(3, 1, 1)]


def test_the_total_by_hand() -> None:
    """The squares, which depend on a model whose numbers add up to a constant."""
    assert float(total(outputs_of(torch.tensor([[1.0, 2], [3, 4]])))) == 1 + 4 + 9 + 16
    assert float(total(outputs_of(torch.full((1, 2, 2, 2), 0.5)))) == 8 / 4
    assert float(total(outputs_of([boxes(2), boxes(1)]))) == 1 / 4 + 1 / 16 + 1 / 4


def test_detached_is_the_same_without_a_graph() -> None:
    def live(*shape: int) -> Tensor:
        return torch.ones(shape).requires_grad_() * 2

    places = live(2, 4)
    found = Detections(places, torch.tensor([1, 2]), live(2))
    first = Output(logits=live(3), size=(4, 5), layers={"a": live(2)}).detached()
    assert first.logits is not None
    assert first.logits.tolist() == [2] * 3
    assert first.size == (4, 5)
    assert first.layers["a"].tolist() == [2, 2]
    segmented = Output(segments=live(3, 1, 1)).detached()
    assert segmented.segments is not None
    assert segmented.segments.tolist() == [[[2]]] * 3
    detected = Output(detections=found).detached()
    assert detected.detections is not None
    assert detected.detections.labels.tolist() == [1, 2]
    assert detected.detections.boxes.tolist() == places.tolist()
    for each in (first, segmented, detected):
        assert not any(values.requires_grad for values in each.numbers)
        assert not any(values.requires_grad for values in each.layers.values())


def test_probabilities_by_hand() -> None:
    """e^z = 1, 3; of each class by itself σ(0) and σ(ln 3); or the numbers as they are."""
    logits = torch.tensor([0, math.log(3)])
    cases: list[tuple[Activation, list[float]]] = [
        ("softmax", [0.25, 0.75]),
        ("sigmoid", [0.5, 0.75]),
        ("none", [0, math.log(3)]),
    ]
    for activation, expected in cases:
        for said in (
            Output(logits=logits, activation=activation),
            Output(segments=logits[:, None, None], activation=activation),
        ):
            assert said.probabilities is not None
            assert said.probabilities.flatten().tolist() == pytest.approx(expected)
    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0))
    assert Output(detections=nothing).probabilities is None


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_ending_of_a_model_is_told_in_any_grad_mode(mode: Any) -> None:
    """Also of a model without parameters: the graph starts at the image."""
    ends = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Softmax(1))
    x = images(1)
    with mode():
        reading, why = resolve_reading(ends, x)
        assert (reading.activation, why) == ("none", "the model ends in a softmax")
        reading, why = resolve_reading(ends[:2], x)
        assert reading.activation == "softmax"
        reading, why = resolve_reading(ends, x, Reading(activation="sigmoid"))
        assert (reading.activation, why) == ("sigmoid", "it was given")
    assert not x.requires_grad


def test_watching_keeps_what_layers_return_and_leaves_no_hook() -> None:
    model = small(inplace=True)
    with watching(model, ["conv1", "conv1", "head"]) as seen:
        assert hook_count(model) == 2
        logits = model(images(2))
        torch.testing.assert_close(seen["head"], logits)
        assert (seen["conv1"] < 0).any()  # though a rectifier works in place behind it
        model(images(1))
        assert len(seen["conv1"]) == 1  # the last pass alone
    assert hook_count(model) == 0
    for name in ("", "nowhere"):
        with (
            pytest.raises(UnknownLayer, match=f"no layer '{name}'"),
            watching(model, ["conv1", name]),
        ):
            pass
        assert hook_count(model) == 0


def test_what_returns_no_tensor_is_not_watched() -> None:
    model = nn.Sequential(Net(lambda x: (x, x)))
    with watching(model, ["0"]) as seen:
        model(images(1))
    assert seen == {}


def test_what_targets_look_at_lies_on_the_image_where_it_can() -> None:
    x = torch.zeros(2, 3, 8, 4)
    assert size_of(x) == (8, 4)
    assert size_of(x[0]) == (8, 4)
    tokens = torch.arange(2.0 * 9 * 5).reshape(2, 9, 5)  # a class token and 4 × 2 cells
    seen = {"maps": torch.ones(2, 6, 4, 2), "tokens": tokens, "vector": torch.ones(2, 6)}
    located = Located(
        {
            "maps": Location((6, 4, 2), Grid("channels first", 4, 2)),
            "tokens": Location((9, 5), Grid("tokens", 4, 2, prefix=1)),
            "vector": Location((6,), None, "it is a vector"),
        }
    )
    found = looked_at(seen, ["tokens", "vector"], x, located)
    assert list(found) == ["tokens", "vector"]
    torch.testing.assert_close(found["tokens"], tokens[:, 1:].transpose(1, 2).reshape(2, 5, 4, 2))
    assert found["vector"] is seen["vector"]
    torch.testing.assert_close(looked_at(seen, ["maps"], x, located)["maps"], seen["maps"])
    for name in ("nowhere", "one"):
        with pytest.raises(LayerDidNotRun, match=f"'{name}' returned no tensor for each image"):
            looked_at(seen | {"one": torch.ones(1, 6)}, [name], x, located)
