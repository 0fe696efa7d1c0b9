"""RefineCAM worked by hand, made of the maps of Grad-CAM++, and against pytorch-grad-cam."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pytorch_grad_cam import RefineCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

from cam import ClassTarget, explain
from cam.drawing.heatmap import minmax
from cam.errors import MethodUnsuited, NoGradientPath
from cam.methods.refinement import refined
from tests.zoo.by_hand import forked
from tests.zoo.convolutional import small
from tests.zoo.parts import images

FINE = np.array([[2, 6, 4, 3, 2, 4]], np.float32)
COARSE = np.array([[9, 0, 6]], np.float32)


def test_refinecam_by_hand() -> None:
    # The coarse map is read at -1/4, 1/4, 3/4, 5/4, 7/4, 9/4: [9, 6.75, 2.25, 1.5, 4.5, 6], which
    # is [1, 0.7, 0.1, 0, 0.4, 0.6] from its minimum to its maximum; the fine one is
    # [0, 1, 0.5, 0.25, 0, 0.5]. The product is [0, 0.7, 0.05, 0, 0, 0.3].
    expected = [[0, 1, 1 / 14, 0, 0, 3 / 7]]
    np.testing.assert_allclose(refined({"fine": FINE, "coarse": COARSE}), expected, atol=1e-6)
    np.testing.assert_allclose(refined({"coarse": COARSE, "fine": FINE}), expected, atol=1e-6)


def test_refinecam_is_zero_where_a_layers_map_is_constant() -> None:
    assert not refined({"fine": FINE, "even": np.full((1, 3), 5, np.float32)}).any()


def test_refinecam_multiplies_the_maps_of_gradcam_plusplus() -> None:
    model, x = small(seed=2), images(2)
    targets, layers = [1, 2], ["relu1", "relu2"]
    found = explain(model, x, target=targets, method="refinecam", layer=layers)
    parts = explain(model, x, target=targets, method="gradcam++", layer=layers)
    assert [each.layer for each in found] == ["relu1 + relu2"] * 4
    shown = 0
    for number, each in enumerate(found):
        fine, coarse = parts[2 * number : 2 * number + 2]
        assert each.target == fine.target == coarse.target
        assert each.map.shape == fine.map.shape == (8, 8)
        maps = {"relu1": fine.map, "relu2": coarse.map}
        np.testing.assert_allclose(each.map, refined(maps), atol=1e-5)
        shown += bool(each.map.max() == 1)
    assert shown >= 3


def test_refinecam_smooths_the_map_of_each_layer() -> None:
    model, x, layers = small(seed=2), images(1), ["relu1", "relu2"]
    (found,) = explain(model, x, target=1, method="refinecam", layer=layers, smooth="eigen")
    fine, coarse = explain(model, x, target=1, method="gradcam++", layer=layers, smooth="eigen")
    np.testing.assert_allclose(
        found.map, refined({"relu1": fine.map, "relu2": coarse.map}), atol=1e-5
    )


def test_refinecam_takes_the_networks_stages_by_default() -> None:
    model, x = small(), images(1)
    (found,) = explain(model, x, target=1, method="refinecam")
    assert found.layer == "relu1 + relu2"
    (one,) = explain(model, x, target=1, method="refinecam", layer="relu1")
    (plain,) = explain(model, x, target=1, method="gradcam++", layer="relu1")
    np.testing.assert_allclose(one.map, minmax(plain.map), atol=1e-6)


def test_refinecam_is_that_of_pytorch_grad_cam() -> None:
    """The finest layer has the photo's size, so that both multiply at the same size.

    The logits are large, because the peer's Grad-CAM++ adds 1e-6 to a denominator of 2 G².
    """
    model, x = small(seed=2), images(4)
    with torch.no_grad():
        model.head.weight *= 1000
    layers = ["relu1", "relu2"]
    shown = 0
    for target in (0, 1, 2):
        ours = explain(model, x, target=target, method="refinecam", layer=layers)
        peer = RefineCAM(model, [model.relu1, model.relu2])
        theirs = peer(x, [ClassifierOutputTarget(target)] * len(x))
        for found, expected in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(found.map, expected, atol=1e-4)
            shown += bool(expected.max() > 0.99)
    assert shown >= 6


def test_refinecam_needs_a_gradient_at_each_layer() -> None:
    x = images(1)
    with pytest.raises(NoGradientPath, match="'unused'"):
        explain(forked(), x, target=0, method="refinecam", layer=["seen", "unused"])
    (found,) = explain(forked(), x, target=0, method="refinecam", layer=["seen", "silent"])
    assert not found.reached
    assert not found.map.any()
    (told,) = found.warnings
    assert told.startswith(
        "the score has no gradient at the positions of layer 'seen + silent', so the map is empty"
    )


def test_refinecam_refuses_what_it_does_itself() -> None:
    layers = ["relu1", "relu2"]
    with pytest.raises(MethodUnsuited, match="refinecam makes one map of all layers itself"):
        explain(small(), images(1), method="refinecam", layer=layers, fuse="mean")
    with pytest.raises(MethodUnsuited, match="refinecam has nothing below 0"):
        explain(small(), images(1), method="refinecam", layer=layers, signed=True)


def test_refinecam_of_a_contrast_of_classes() -> None:
    model, x = small(seed=2), images(1)
    target = ClassTarget(1, minus=2)
    (found,) = explain(model, x, target=target, method="refinecam", layer=["relu1", "relu2"])
    parts = explain(model, x, target=target, method="gradcam++", layer=["relu1", "relu2"])
    expected = refined({each.layer: each.map for each in parts})
    np.testing.assert_allclose(found.map, expected, atol=1e-5)
