"""What methods that mask the photo show the model, and how they weigh it: by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import ClassTarget, Explanation, SimilarityTarget, UnitTarget, explain
from cam.errors import MethodUnsuited
from cam.passes.batch_dependence import conduct_of
from cam.positions.locate import locate
from tests.cam.methods.test_perturbation import PHOTO
from tests.zoo.by_hand import identity
from tests.zoo.parts import Net, means, scale, scored, seen_by


def test_scorecam_resizes_its_masks_bilinearly_between_pixel_centres() -> None:
    # Enlarged twice, (1, 0) becomes (1, 3/4, 1/4, 0) and (0, 1) its reverse: the second pixel of
    # the first row is 3/4 through the first channel and 0 through the other. Aligned corners would
    # make it 2/3, a cubic 0.88.
    photo = torch.ones(1, 3, 4, 4)
    photo[0, 1, :2, :2], photo[0, 2, 2:, 2:] = 5, 5

    def second(x: Tensor, layer: nn.Module) -> Tensor:
        layer(x)
        return x[:, 0, 0, 1]

    # The layer halves 4 × 4 pixels to 2 × 2; y is the second pixel of the first row.
    model = scored(second, layer=nn.AvgPool2d(2))
    (found,) = explain(model, photo, target=0, method="scorecam", layer="layer")
    first = math.exp(0.75) / (math.exp(0.75) + 2)
    other = 1 / (math.exp(0.75) + 2)  # so does the flat channel, whose mask is 0
    expected = [[5 * first + 2 * other, 1], [1, first + 6 * other]]
    np.testing.assert_allclose(found.map, expected, rtol=1e-6)


def right_half() -> Net:
    """y is the mean of the right half of the image."""
    return scored(
        lambda x, layer: layer(x)[..., x.shape[-1] // 2 :].mean((1, 2, 3)), layer=nn.Identity()
    )


def passes_of(
    photo: Tensor, method: str, *, budget: int | None = None
) -> tuple[Explanation, list[Tensor]]:
    """An explanation of `right_half`, and the images of each pass of the method itself: it is known
    where the layer lies, how the output is read, and that the model keeps images apart."""
    model = right_half()
    seen = seen_by(model)
    locate(model, photo, ["layer"])
    conduct_of(model, photo)
    seen.clear()
    (found,) = explain(
        model,
        photo,
        target=0,
        method=method,
        layer="layer",
        budget=budget,
        signed=method == "occlusion",
        activation="softmax",
    )
    first, *passes = seen
    assert (first == photo).all()
    return found, passes


def through_masks(method: str, photo: Tensor) -> tuple[Tensor, np.ndarray]:
    """What a method of masks shows the model, divided by the photo: (samples, channels, H, W); and
    its map, which the mean over the samples must weight."""
    found, samples = passes_of(photo, method)
    seen = torch.stack(samples)  # (samples, channels, colours, H, W)
    scores = seen[..., photo.shape[-1] // 2 :].mean(dim=(2, 3, 4))
    weights = scores.mean(0).softmax(0)
    expected = torch.einsum("k,khw->hw", weights, photo[0])
    np.testing.assert_allclose(found.map, expected, rtol=1e-4)
    masks = seen / photo
    torch.testing.assert_close(masks[:, :, 0], masks[:, :, 1])  # each colour through the same one
    return masks[:, :, 0], found.map


def test_sscam_adds_noise_of_two_to_each_of_ten_samples() -> None:
    photo = torch.ones(1, 2, 64, 64)
    photo[0, 0, :, 32:], photo[0, 1, :32] = 9, 9
    masks, _ = through_masks("sscam", photo)
    assert masks.shape == (10, 2, 64, 64)
    assert (masks.amin((2, 3)) == 0).all()
    torch.testing.assert_close(masks.amax((2, 3)), torch.ones(10, 2))
    # A mask is (A + δ) scaled. A is 1 in one half and 9 in the other, so whatever the scale, the
    # deviation within a half over the distance between the halves is σ / 8.
    noise = []
    for channel, (low, high) in enumerate(
        [(masks[:, 0, :, :32], masks[:, 0, :, 32:]), (masks[:, 1, 32:], masks[:, 1, :32])]
    ):
        distance = high.mean((1, 2)) - low.mean((1, 2))
        for half in (low, high):
            ratio = half.std((1, 2)) / distance
            assert float(ratio.mean()) == pytest.approx(2 / 8, rel=0.02)
            assert ratio.min() > 0.23, channel
            assert ratio.max() < 0.27, channel
            noise.append(half.reshape(10, -1) - half.mean((1, 2))[:, None])
    # Each sample of each channel has its own noise: of 2,048 pixels, none is like another.
    likeness = torch.corrcoef(torch.cat([torch.cat(noise[:2], 1), torch.cat(noise[2:], 1)]))
    assert (likeness - torch.eye(20)).abs().max() < 0.1


def test_iscam_by_hand() -> None:
    # Factors 0.1, 0.3, 0.6, 1, 1.5, 2.1, 2.8, 3.6, 4.5, 5.5 have the mean 2.2; class 0 scores 1
    # times each through the first channel, 0 through the others.
    (found,) = explain(identity(), PHOTO, target=0, method="iscam", layer="layer")
    total = math.exp(2.2) + 2
    expected = np.array([[4 * math.exp(2.2) / total, 8 / total], [0, 0]])
    np.testing.assert_allclose(found.map, expected, rtol=1e-5)
    photo = torch.ones(1, 2, 2, 4)
    photo[0, 0, :, 2:], photo[0, 1, 0, 3] = 3, 2
    masks, _ = through_masks("iscam", photo)
    factors = torch.tensor([0.1, 0.3, 0.6, 1, 1.5, 2.1, 2.8, 3.6, 4.5, 5.5])
    whole = torch.tensor([[[0.0, 0, 1, 1]] * 2, [[0, 0, 0, 1], [0, 0, 0, 0]]])
    torch.testing.assert_close(masks, factors[:, None, None, None] * whole)


def rise_of(photo: Tensor, budget: int) -> tuple[Explanation, Tensor]:
    """Its explanation of a photo, and its masks (budget, H, W), of passes of sixteen."""
    found, rest = passes_of(photo, "rise", budget=budget)
    assert [len(each) for each in rest] == [
        min(16, budget - start) for start in range(0, budget, 16)
    ]
    masks = torch.cat(rest) / photo
    torch.testing.assert_close(masks[:, 0], masks[:, 1])
    return found, masks[:, 0]


def shifts_of(masks: Tensor, cell: int) -> np.ndarray:
    """By how many rows each mask (n, rows, columns) is shifted. Between the centres of cells, at
    cell / 2 - 1/2, … less the shift, it is a straight line: it bends on both sides of a centre."""
    bends = (masks[:, 2:] - 2 * masks[:, 1:-1] + masks[:, :-2]).abs().amax(2) > 1e-4
    rows = np.arange(1, masks.shape[1] - 1) % cell
    at = np.stack([bends[:, rows == row].any(1) for row in range(cell)], 1)  # (n, cell)
    possible = np.ones_like(at)
    for shift in range(cell):
        centre = (cell // 2 - 1 - shift) % cell, (cell // 2 - shift) % cell
        possible[:, shift] = ~np.delete(at, centre, axis=1).any(1)
    assert possible.any(1).all()  # no mask bends elsewhere
    known = possible[possible.sum(1) == 1]
    assert len(known) > 0.95 * len(masks)
    found: np.ndarray = known.argmax(1)
    return found


def test_rises_masks_and_their_weights() -> None:
    """56 × 28 pixels in 7 × 7 cells of 8 × 4, each open or not, enlarged and shifted."""
    found, masks = rise_of(torch.full((1, 2, 56, 28), 2.0), 300)
    assert masks.min() == 0
    assert masks.max() == 1
    # Half of the cells are open.
    assert float(masks.mean()) == pytest.approx(0.5, abs=0.02)
    assert (masks.mean(0) - 0.5).abs().max() < 0.15
    for values, cell in ((masks, 8), (masks.transpose(1, 2), 4)):
        shifts = shifts_of(values, cell)
        often = np.bincount(shifts, minlength=cell) / len(shifts)
        assert (abs(often - 1 / cell) < 0.08).all()  # every shift as often
    # map = 1/(N p) Σ P M, P = σ(y) of y, the mean of the right half.
    likely = (2 * masks[:, :, 14:].mean((1, 2))).sigmoid()
    expected = torch.einsum("n,nhw->hw", likely, masks) / (300 * 0.5)
    np.testing.assert_allclose(found.map, expected, rtol=1e-4)


def test_rise_on_few_pixels() -> None:
    """9 × 7 pixels are 5 × 7 cells of 2 × 1 and a shift of none or one."""
    _, masks = rise_of(torch.ones(1, 2, 9, 7), 40)
    assert set(masks.transpose(1, 2).reshape(-1, 9)[:, 0].tolist()) <= {0, 0.25, 0.75, 1}
    whole = [mask for mask in masks if set(mask[0].tolist()) <= {0.0, 1.0}]
    assert 5 < len(whole) < 40  # not shifted: the first row is one row of cells


@pytest.mark.parametrize(
    "target",
    [
        ClassTarget(0, against=True),
        UnitTarget("layer", 0, against=True),
        SimilarityTarget("layer", np.ones(2, np.float32), against=True),
    ],
)
def test_rise_refuses_whatever_is_against(target: ClassTarget) -> None:
    with pytest.raises(MethodUnsuited, match="leave out against"):
        explain(right_half(), torch.ones(1, 2, 8, 8), target=[0, target], method="rise", budget=3)


def windows(size: tuple[int, int], budget: int) -> list[tuple[int, int, int, int]]:
    """What occlusion hides, pass by pass: top, left, bottom, right."""
    photo = torch.ones(1, 2, *size)
    explanation, (whole, *rest) = passes_of(photo, "occlusion", budget=budget)
    assert explanation.map.shape == size
    assert (whole == photo).all()
    found = []
    for image in torch.cat(rest):
        hidden = (image == 0).all(0)
        assert (image[:, ~hidden] == 1).all()
        rows, columns = hidden.any(1).nonzero().flatten(), hidden.any(0).nonzero().flatten()
        top, left = int(rows[0]), int(columns[0])
        bottom, right = int(rows[-1]) + 1, int(columns[-1]) + 1
        assert hidden.sum() == (bottom - top) * (right - left)
        found.append((top, left, bottom, right))
    return found


@pytest.mark.parametrize(
    ("size", "budget", "cell", "rows", "columns"),
    [
        ((16, 16), 9, 4, 4, 4),  # 3 × 3 windows: no smaller cell does with nine
        ((16, 16), 8, 6, 3, 3),  # cells of 5 would take 9
        ((8, 16), 8, 4, 2, 4),  # cells of 3 would take 2 × 5
        ((16, 8), 8, 4, 4, 2),
        ((10, 10), 4, 4, 3, 3),  # the last cell is cut off
        ((2, 20), 2, 7, 2, 3),  # of one row of cells a second is outside the image
        ((6, 6), 1, 3, 2, 2),  # one window is the whole image
        ((2, 20), 1, 10, 2, 2),
        ((29, 29), 800, 2, 15, 15),  # 28 cells at most: not 29 of one pixel
        ((28, 56), 2000, 2, 14, 28),  # on the longer side
        ((28, 28), 729, 1, 28, 28),
    ],
)
def test_occlusions_windows_are_as_small_as_the_budget_allows(
    size: tuple[int, int], budget: int, cell: int, rows: int, columns: int
) -> None:
    height, width = size
    expected = [
        (y * cell, x * cell, min((y + 2) * cell, height), min((x + 2) * cell, width))
        for y in range(rows - 1)
        for x in range(columns - 1)
    ]
    assert windows(size, budget) == expected
    assert len(expected) <= budget


def test_occlusion_shares_out_what_each_window_costs() -> None:
    # 3 × 2 cells of 2 × 2 pixels, two windows. P = σ(y), y the right half's mean of two colours.
    photo = torch.arange(1.0, 25).reshape(1, 1, 6, 4).repeat(1, 2, 1, 1) / 24
    (found,) = explain(right_half(), photo, target=0, method="occlusion", budget=2, signed=True)
    right = photo[0, 0, :, 2:]

    def likely(hidden: slice) -> float:
        seen = right.clone()
        seen[hidden] = 0
        return float(seen.mean().sigmoid())

    whole = float(right.mean().sigmoid())
    upper, lower = whole - likely(slice(0, 4)), whole - likely(slice(2, 6))
    rows = np.array([upper, upper, (upper + lower) / 2, (upper + lower) / 2, lower, lower])
    np.testing.assert_allclose(found.map, np.repeat(rows[:, None], 4, 1), rtol=1e-5)
    # The same across: the left window hides a third of what is seen, the right one all of it.
    photo = torch.arange(1.0, 25).reshape(1, 1, 4, 6).repeat(1, 2, 1, 1) / 24
    (found,) = explain(right_half(), photo, target=0, method="occlusion", budget=2, signed=True)
    right = photo[0, 0, :, 3:]
    whole, part = float(right.mean().sigmoid()), right.clone()
    part[:, 0] = 0
    left_drop, right_drop = whole - float(part.mean().sigmoid()), whole - 0.5
    both = (left_drop + right_drop) / 2
    columns = np.array([left_drop, left_drop, both, both, right_drop, right_drop])
    np.testing.assert_allclose(found.map, np.repeat(columns[None], 4, 0), rtol=1e-5)
    # The other class loses what this one wins.
    (other,) = explain(right_half(), photo, target=1, method="occlusion", budget=2, signed=True)
    np.testing.assert_allclose(other.map, -found.map, atol=1e-6)


def faint() -> Net:
    """The layer holds a ten-thousandth of the photo; the logits are the photo's means."""

    def forward(x: Tensor, layer: nn.Module) -> Tensor:
        layer(x)
        return means(x)

    return Net(forward, layer=scale(1e-4))


@pytest.mark.parametrize(("model", "factor"), [(identity(), 1), (faint(), 1e-4)])
def test_a_flat_channel_shows_nothing_and_a_weak_one_all(model: nn.Module, factor: float) -> None:
    """Min-max scaling has no scale of its own: 1e-4 is as much as 4."""
    photo = torch.zeros(1, 3, 2, 2)
    photo[0, 0, 0, 0], photo[0, 1, 0, 1], photo[0, 2] = 4, 8, 5
    (found,) = explain(model, photo, target=0, method="scorecam", layer="layer")
    # Class 0 scores 1 through the first channel's mask, 0 through the others'.
    weights = torch.tensor([math.e, 1, 1])[:, None, None] / (math.e + 2)
    np.testing.assert_allclose(found.map, factor * (photo[0] * weights).sum(0), rtol=1e-5)
