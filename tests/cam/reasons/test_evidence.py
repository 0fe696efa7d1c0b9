"""Evidence layers: by hand, beside an independent loop, and where they end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import CamError, ClassTarget, Reason, evidence_layers, explain
from cam.drawing.placement import resize
from cam.errors import InvalidOption, NothingDetected
from cam.reasons.cascade import Cascade
from tests.zoo.by_hand import blobs
from tests.zoo.convolutional import small
from tests.zoo.parts import images


def photo(corner: float = 0.0) -> Tensor:
    """Two blobs of 2 × 2 pixels of brightness 1, and one pixel in a corner."""
    x = torch.zeros(1, 1, 6, 6)
    x[..., 0:2, 0:2] = x[..., 4:6, 4:6] = 1
    x[..., 0, 5] = corner
    return x


def logistic(*logits: float) -> float:
    """The softmax's probability of the first class."""
    return float(np.exp(logits[0]) / np.exp(logits).sum())


def test_two_reasons_by_hand() -> None:
    model, x = blobs(), photo()
    (found,) = evidence_layers(model, x, method="hirescam", layer="layer", threshold=0.7)
    first, second = found
    # hirescam at the only layer: each position's part of the score, 3 and 2.
    assert (first.number, second.number) == (1, 2)
    assert first.score == pytest.approx(3 * 4 + 2 * 4 - 5)
    assert first.probability == pytest.approx(logistic(15, 0, 0))
    expected = np.zeros((6, 6))
    expected[0:2, 0:2], expected[4:6, 4:6] = 1, 2 / 3
    np.testing.assert_allclose(first.map, expected, atol=1e-6)
    np.testing.assert_array_equal(first.mask, expected == 1)
    assert first.share == pytest.approx(4 / 36)
    # Without the first blob, class 0 has the score 3.
    assert second.score == pytest.approx(2 * 4 - 5)
    assert second.probability == pytest.approx(logistic(3, 0, 0))
    np.testing.assert_allclose(second.map, np.where(expected == 1, 0, expected > 0), atol=1e-6)
    np.testing.assert_array_equal(second.mask, second.map == 1)
    assert second.share == pytest.approx(4 / 36)
    assert not first.warnings
    (warning,) = second.warnings
    assert warning == (
        "there is no reason 3: the map of the masked photo is the same everywhere (class 0, "
        "p = 0.003)"
    )
    assert logistic(-5, 0, 0) == pytest.approx(0.003, abs=5e-4)
    assert second.title == "reason 2: class 0, p = 0.909"


def test_the_class_is_that_of_the_photo() -> None:
    """Without the first blob, class 2 is the predicted one, by the pixel in the corner."""
    model, x = blobs(), photo(corner=1.0)
    (found,) = evidence_layers(model, x, method="hirescam", layer="layer", threshold=0.7)
    assert [reason.target for reason in found] == [ClassTarget(0), ClassTarget(0)]
    assert [reason.score for reason in found] == pytest.approx([15, 3])
    assert found[1].probability == pytest.approx(logistic(3, 0, 10), rel=1e-4)


def test_what_is_masked_stays_masked() -> None:
    """A pixel that would be hot again if it came back is not part of a later reason."""
    model = blobs(first=3, second=2)
    x = photo()
    x[..., 2, 2] = 1
    with torch.no_grad():
        model.head.weight[0, 2 * 6 + 2] = 1
    (found,) = evidence_layers(model, x, method="hirescam", layer="layer", threshold=0.7)
    assert [reason.score for reason in found] == pytest.approx([16, 4, -4])
    total = np.sum([reason.mask for reason in found], 0)
    assert total.max() == 1
    assert total.sum() == 4 + 4 + 1


def test_a_mask_is_zero_after_preprocessing() -> None:
    """Not the image's mean, and not its blur, which `deletion` could put there, too."""
    model, x = blobs(bias=0), photo() + 0.5
    (found,) = evidence_layers(model, x, method="hirescam", layer="layer", count=2, threshold=0.7)
    assert found[0].score == pytest.approx(20 * 1.5)
    assert found[1].score == pytest.approx(8 * 1.5)


def by_itself(
    model: nn.Module, x: Tensor, target: int | None, threshold: float, **asked: Any
) -> list[tuple[float, np.ndarray]]:
    """The definition once more, for one image (1, C, H, W) and three reasons: the probabilities and
    maps."""
    visible, seen = np.ones(x.shape[-2:], bool), x.numpy().copy()
    told: list[tuple[float, np.ndarray]] = []
    for _ in range(3):
        (one,) = explain(model, torch.from_numpy(seen), target=target, **asked)
        assert isinstance(one.target, ClassTarget)
        target = one.target.index
        heat = resize(one.map, *visible.shape).astype(np.float64)
        low, high = heat[visible].min(), heat[visible].max()
        if high == low:
            break
        heat = np.where(visible, (heat - low) / (high - low), 0)
        assert one.probability is not None
        told.append((one.probability, heat))
        visible = visible & ~(heat >= threshold)
        seen = x.numpy() * visible
    return told


@pytest.mark.parametrize("method", ["gradcam", "eigencam"])
@pytest.mark.parametrize("target", [None, 1])
def test_parity_with_the_loop(method: str, target: int | None) -> None:
    model, x = small(seed=3), images(4, seed=5)
    asked: dict[str, Any] = {"method": method, "layer": "relu1"}
    found = evidence_layers(model, x, target=target, threshold=0.6, **asked)
    lengths = set()
    for turn, reasons in enumerate(found):
        told = by_itself(model, x[turn : turn + 1], target, 0.6, **asked)
        assert len(reasons) == len(told)
        lengths.add(len(told))
        for reason, (probability, heat) in zip(reasons, told, strict=True):
            assert reason.probability == pytest.approx(probability, abs=1e-6)
            np.testing.assert_allclose(reason.map, heat, atol=1e-5)
    assert 3 in lengths


def test_a_batch_is_as_each_alone_in_as_many_passes() -> None:
    model, x = small(seed=3), images(3, seed=5)
    explain(model, x, layer="relu1")  # what is found out once
    seen: list[int] = []
    handle = model.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    found = evidence_layers(model, x, layer="relu1")
    handle.remove()
    assert [len(reasons) for reasons in found] == [3, 3, 3]
    assert [count for count in seen if count == 3] == [3, 3, 3]
    for turn, reasons in enumerate(found):
        (alone,) = evidence_layers(model, x[turn : turn + 1], layer="relu1")
        for one, other in zip(reasons, alone, strict=True):
            assert one.target == other.target
            assert one.score == pytest.approx(other.score, abs=1e-5)
            np.testing.assert_allclose(one.map, other.map, atol=1e-4)


def test_model_and_images_are_left_as_found() -> None:
    model, x = small().train(), images(2)
    weights, pixels = [each.clone() for each in model.state_dict().values()], x.clone()
    evidence_layers(model, x)
    assert model.training
    assert torch.equal(x, pixels)
    for before, after in zip(weights, model.state_dict().values(), strict=True):
        assert torch.equal(before, after)


def test_a_first_map_of_zeros_is_no_quiet_picture() -> None:
    (found,) = evidence_layers(blobs(), torch.zeros(1, 1, 6, 6), method="hirescam", layer="layer")
    (only,) = found
    assert only.share == 0
    assert only.warnings[-1].startswith(
        "there is no reason 2: the map of the photo is the same everywhere"
    )


def test_no_pixel_is_left() -> None:
    (plain,) = explain(small(), images(1), layer="relu1", signed=True)
    cascade = Cascade((8, 8), 3, 0.5)
    for turn in range(2):
        values = np.ones((8, 8), np.float32)
        cascade.add(type(plain)(**{**vars(plain), "map": values, "warnings": ()}))
        assert cascade.open is (turn == 0)
    (only,) = cascade.reasons
    assert only.share == 1
    assert "there is no reason 2" in only.warnings[0]


def test_it_takes_what_explain_takes() -> None:
    model, x = small(), images(2)
    classes = torch.tensor([2, 0])
    (first, second) = evidence_layers(
        model, x, method="scorecam", layer="relu1", target=classes, budget=2, count=2
    )
    assert [reasons[-1].target for reasons in (first, second)] == [ClassTarget(2), ClassTarget(0)]
    ((fused, *_), _) = evidence_layers(model, x, layer=["relu1", "relu2"], fuse="mean")
    assert fused.layer == "relu1 + relu2"
    ((pixels, again, *_), _) = evidence_layers(model, x, method="gradient")
    assert (pixels.layer, again.layer, again.number) == ("input", "input", 2)
    (signed, *_), _ = evidence_layers(model, x, signed=True)
    assert signed.map.min() < 0


def test_a_pixel_at_the_threshold_is_masked() -> None:
    model = blobs(first=4, second=2)
    (only,) = evidence_layers(model, photo(), method="hirescam", layer="layer", threshold=0.5)[0]
    assert only.share == pytest.approx(8 / 36)


def test_the_pixels_of_a_segmenter_are_not_chosen_again() -> None:
    """Class 1 has the score brightness − 0.5 and is where that is above 1, the score of class 0. A
    masked pixel still counts, with the score −0.5."""
    parts = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1)
    model = nn.Sequential(*parts)
    with torch.no_grad():
        for part, bias in zip(parts, ([0, 0], [1, -0.5]), strict=True):
            matrix = torch.tensor([[0.0], [1]]) if part.in_channels == 1 else torch.eye(2)
            part.weight.copy_(matrix[:, :, None, None])
            assert part.bias is not None
            part.bias.copy_(torch.tensor(bias))
    x = torch.zeros(1, 1, 6, 6)
    x[..., 1, 1:4] = torch.tensor([4.0, 3, 2])
    (found,) = evidence_layers(model, x, method="hirescam", layer="0", target=1, threshold=0.9)
    assert [reason.score for reason in found] == pytest.approx([7.5, 3.5, 0.5])
    assert [reason.share for reason in found] == pytest.approx([1 / 36] * 3)


def test_a_detector_that_finds_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reasons of the image whose box is gone end, those of the others go on."""
    calls: list[int] = []

    def fickle(model: nn.Module, x: Tensor, **asked: Any) -> Any:
        calls.append(len(x))
        gone = [bool((image == 0).any()) and float(image.max()) > 3 for image in x]
        if any(gone):
            raise NothingDetected("the model finds nothing of class 1; it finds none")
        return explain(model, x, **asked)

    monkeypatch.setattr("cam.reasons.evidence.explain", fickle)
    x = images(2).clamp(-2, 2)
    x[1, 0, 7, 7] = 4
    one, other = evidence_layers(small(), x, layer="relu1", target=1, count=2)
    assert (len(one), len(other)) == (2, 1)
    assert calls == [2, 2, 1, 1]
    (warning,) = other[0].warnings
    assert warning == (
        "there is no reason 2: in the masked photo the model finds nothing of class 1; it finds "
        "none"
    )


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"count": 0}, "count is 0; it can be 1 to 5"),
        ({"count": 6}, "count is 6; it can be 1 to 5"),
        ({"count": True}, "count is True; it can be 1 to 5"),
        ({"count": 2.0}, "count is 2.0; it can be 1 to 5"),
        ({"threshold": 0}, "threshold is 0; it is above 0 and below 1"),
        ({"threshold": 1.0}, "threshold is 1.0; it is above 0 and below 1"),
        ({"threshold": float("nan")}, "threshold is nan; it is above 0 and below 1"),
        ({"threshold": "0.5"}, "threshold is '0.5'; it is above 0 and below 1"),
        ({"target": [0, 1]}, "name 2 maps of an image"),
        ({"layer": ["relu1", "relu2"]}, "name 2 maps of an image"),
    ],
)
def test_refusals(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidOption, match=words.replace("(", r"\(")):
        evidence_layers(small(), images(2), **asked)


def test_the_errors_of_explain() -> None:
    with pytest.raises(CamError, match="there is no method"):
        evidence_layers(small(), images(1), method="nothing")


def test_a_reason_shows_itself() -> None:
    model, x = small(), images(1)
    ((first, *_),) = evidence_layers(model, x)
    assert isinstance(first, Reason)
    assert first.draw().shape[2] == 3
    assert first.input is not None
    assert first.input.picture() is not None
