"""How much maps agree, by hand and beside SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from cam import explain, spearman
from cam.drawing.placement import Float, shrink
from cam.errors import UnknownMethod
from tests.zoo.convolutional import small
from tests.zoo.parts import images, seen_by


def of(*rows: list[float]) -> Float:
    return np.array(rows, np.float32)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (of([1, 2], [3, 4]), of([10, 20], [30, 4000]), 1.0),  # their numbers do not count
        (of([1, 2], [3, 4]), of([4, 3], [2, 1]), -1.0),
        # Ranks 1 2 3 4 and 2 1 4 3: 1 − 6 · 4 / (4 · 15).
        (of([1, 2], [3, 4]), of([2, 1], [4, 3]), 0.6),
        # Ranks 1.5 1.5 3 4 and 1 2 3 4: deviations −1 −1 .5 1.5 and −1.5 −.5 .5 1.5, so
        # 4.5 / √(4.5 · 5).
        (of([0, 0], [5, 9]), of([1, 2], [3, 4]), 4.5 / np.sqrt(4.5 * 5)),
        (of([1, 1], [1, 1]), of([1, 2], [3, 4]), None),
        (of([1, 2], [3, 4]), of([0, 0], [0, 0]), None),
    ],
)
def test_by_hand(first: Float, second: Float, expected: float | None) -> None:
    found = spearman(first, second)
    assert found == (expected if expected is None else pytest.approx(expected, abs=1e-12))
    assert spearman(second, first) == found


@pytest.mark.parametrize("seed", range(5))
def test_as_scipy_has_it(seed: int) -> None:
    random = np.random.default_rng(seed)
    first, second = random.normal(size=(2, 7, 9)).astype(np.float32).clip(0)  # half of it ties
    second += first / 2
    expected = float(spearmanr(first, second, axis=None).statistic)
    assert spearman(first, second) == pytest.approx(expected, abs=1e-12)


def test_the_coarser_grid_counts() -> None:
    fine = of([1, 3, 5, 7], [1, 3, 5, 7], [0, 0, 9, 9], [0, 0, 9, 9])
    assert shrink(fine, 2, 2).tolist() == [[2, 6], [0, 9]]
    assert spearman(fine, of([2, 6], [0, 9])) == 1
    assert spearman(of([2, 6], [0, 9]), fine) == 1
    # Rows of one, columns of the other.
    assert spearman(of([1, 1, 2, 2]), of([5], [7])) is None
    assert spearman(of([1, 1, 2, 2], [3, 3, 4, 4]), of([1, 2], [3, 4], [3, 4])) == 1


def test_several_methods_share_a_pass_and_are_as_they_are_alone() -> None:
    model = small()
    seen = seen_by(model)
    names = ["gradcam", "scorecam", "layercam", "fullgrad"]
    layers = ["relu1", "relu2"]
    batch = images(2)
    alone = {}
    for name in names:
        (*found,) = explain(model, batch, target=[0, 2], method=name, layer=layers)
        half = len(found) // 2
        alone[name] = [found[:half], found[half:]]
    passes = {}
    for asked in (["gradcam"], ["gradcam", "layercam"]):
        seen.clear()
        explain(model, batch, target=[0, 2], method=asked, layer=layers)
        passes[len(asked)] = [len(each) for each in seen]
    assert passes[1] == passes[2]
    together = explain(model, batch, target=[0, 2], method=names, layer=layers)
    expected = [each for image in range(2) for name in names for each in alone[name][image]]
    assert [(each.method, each.layer, each.turn) for each in together] == [
        (each.method, each.layer, each.turn) for each in expected
    ]
    for one, other in zip(together, expected, strict=True):
        np.testing.assert_allclose(one.map, other.map, rtol=1e-5, atol=1e-6)
    assert [each.turn for each in together[:6]] == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([], "the list of methods is empty; the methods are gradcam, "),
        (["gradcam", "nothing"], "there is no method 'nothing'"),
        (["gradcam", "layercam", "gradcam"], "method 'gradcam' is named twice"),
        ([7], "there is no method 7"),
    ],
)
def test_methods_that_cannot_be(asked: list[str], said: str) -> None:
    with pytest.raises(UnknownMethod, match=said):
        explain(small(), torch.zeros(1, 3, 8, 8), method=asked)
