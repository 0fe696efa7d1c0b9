"""One call of a module that runs several times in a forward pass is a layer of its own."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cam import Capture, SimilarityTarget, default_layer, explain, survey
from cam.errors import (
    LayerDidNotRun,
    LayerNotSpatial,
    LayerReused,
    NoTargetLayer,
    UnknownLayer,
)
from cam.hooks.calls import turns_of
from tests.zoo.convolutional import twice
from tests.zoo.parts import Net, hook_count, images, pooled
from tests.zoo.transformers import sharing_positions


def brighter(x: Tensor) -> Tensor:
    return 1.5 * x


def flipped(x: Tensor) -> Tensor:
    return x.flip(-1)


def test_each_call_has_the_map_of_its_own_pass_by_hand() -> None:
    model, x = twice(brighter), images(1, size=16)
    first, second = explain(model, x, target=1, layer=["relu#1", "relu#2"])
    for found, seen, factor in ((first, x, 1), (second, brighter(x), 2)):
        a = model.conv(seen)[0].relu()
        weights = factor * model.head.weight[1] / 256  # the gradient, of which the mean is taken
        expected = torch.einsum("k,kij->ij", weights, a).relu().detach()
        np.testing.assert_allclose(found.map, expected, rtol=1e-4, atol=1e-7)
    assert (first.layer, second.layer) == ("relu#1", "relu#2")
    assert hook_count(model) == 0


def test_a_capture_takes_the_calls_that_are_named() -> None:
    model, x = twice(brighter), images(2)
    with Capture(model, ["conv#2"]) as capture:
        logits = model(x)
        capture.backward(logits[:, 1].sum())
    torch.testing.assert_close(capture.activations["conv#2"], model.conv(brighter(x)).detach())
    assert capture.gradients["conv#2"].shape == (2, 4, 8, 8)
    for _ in range(2):  # calls are counted from the beginning of each pass
        with Capture(model, ["conv#1"]) as capture:
            model(x)
        torch.testing.assert_close(capture.activations["conv#1"], model.conv(x).detach())
    assert hook_count(model) == 0


def test_calls_that_there_are_not() -> None:
    model, x = twice(brighter), images(1)
    with Capture(model, ["conv#3"]) as capture:
        model(x)
    with pytest.raises(LayerDidNotRun, match="'conv#3' did not run"):
        _ = capture.activations
    for name in ("conv#0", "conv#", "other#1", "#1"):
        with pytest.raises(UnknownLayer, match=f"no layer '{name}'"), Capture(model, [name]):
            pass
    with pytest.raises(LayerReused, match="name one call of it, such as 'conv#1'"):
        explain(model, x, layer="conv")
    with pytest.raises(LayerReused, match="'conv#1' is one call of several"):
        explain(model, x, layer="conv#1", method="ablationcam")


def test_a_survey_lists_calls_and_a_call_is_no_default() -> None:
    found = {layer.name: layer for layer in survey(twice(brighter), images(1, size=16))}
    assert list(found) == [
        *("conv#1", "relu#1", "head#1", "conv#2", "conv", "relu#2", "relu", "head#2", "head"),
    ]
    assert found["conv"].problem is not None
    assert "it runs 2 times in a forward pass" in found["conv"].problem
    assert [name for name, layer in found.items() if layer.explainable] == [
        *("conv#1", "relu#1", "conv#2", "relu#2"),
    ]
    words = "runs several times in a forward pass; name one call, such as 'relu#1'"
    with pytest.raises(NoTargetLayer, match=words):
        default_layer([*found.values()])


def test_methods_without_a_layer_explain_a_model_whose_layers_all_run_twice() -> None:
    for method in ("occlusion", "rise", "gradient", "integratedgradients"):
        (found,) = explain(twice(flipped), images(1), method=method, budget=9)
        assert found.map.max() > 0


def test_a_call_that_sees_the_image_mirrored() -> None:
    model, x = twice(flipped), images(1, size=64)
    (first,) = explain(model, x, layer="conv#1")
    (second,) = explain(model, x, layer="conv#2")
    assert first.placement is None
    assert second.placement
    assert second.placement.mirrored


def test_a_call_may_be_a_target_and_a_pattern_names_calls_if_it_says_so() -> None:
    model, x = twice(brighter), images(1, size=16)
    likeness = SimilarityTarget("conv#2", np.array([1.0, 0, 0, 0], np.float32))
    assert explain(model, x, target=likeness, method="gradient")
    assert [each.layer for each in explain(model, x, layer="*#2")] == ["conv#2", "relu#2"]
    with pytest.raises(UnknownLayer, match="no layer at which a map can be made matches"):
        explain(model, x, layer="conv*")


def test_what_comes_before_a_network_that_runs_twice_is_no_default() -> None:
    model = nn.Sequential(OrderedDict(normalise=nn.BatchNorm2d(3), net=twice(flipped))).eval()
    found = survey(model, images(1, size=32))
    assert [layer.name for layer in found if layer.eligible] == ["normalise"]
    words = "every layer of the model behind 'normalise' runs several times"
    with pytest.raises(NoTargetLayer, match=words):
        default_layer(found)


def test_the_stem_of_a_loop_is_no_default_layer() -> None:
    model = Net(
        lambda x, stem, block, head: head(block(block(block(stem(x)))).mean((2, 3))),
        stem=nn.Conv2d(3, 4, 3, 2, 1),
        block=nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU()),
        head=nn.Linear(4, 3),
    ).eval()
    x = torch.rand(1, 3, 32, 32)
    with pytest.raises(NoTargetLayer, match="behind 'stem' runs several times"):
        explain(model, x, target=1)
    (last,) = explain(model, x, target=1, layer="block#3")
    assert last.map.shape == (16, 16)


def test_a_shared_convolution_inside_the_blocks_does_not_refuse_the_default_layer() -> None:
    model, x = sharing_positions(), torch.rand(1, 3, 32, 32)
    assert default_layer(survey(model, x)) == "norms.1"


def test_mirror_images_within_the_batch_are_refused_for_the_true_reason() -> None:
    model = Net(
        lambda x, net: net(torch.cat([x, x.flip(-1)])).view(2, -1, 3).mean(0),
        net=pooled(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Linear(4, 3)),
    ).eval()
    x = torch.rand(1, 3, 32, 32)
    with pytest.raises(NoTargetLayer, match="several rows for one image"):
        explain(model, x, target=1)
    with pytest.raises(LayerNotSpatial, match=r"\(2, 4, 16, 16\) has 2 rows for one image"):
        explain(model, x, target=1, layer="net.1")
    assert explain(model, x, target=1, method="gradient")[0].map.shape == (32, 32)


def test_turns_by_hand() -> None:
    runs = {"norm": 1, "net": 2, "net.inner": 4, "net.inner.conv": 4, "net.relu": 6, "again": 3}
    assert turns_of("norm", runs) == ()
    assert turns_of("net.relu", runs) == ()  # no call of it
    assert turns_of("net#2", runs) == ((2, 2),)
    assert turns_of("net.inner#3", runs) == ((2, 2), (4, 3))
    assert turns_of("net.inner.conv#2", runs) == ((2, 1), (4, 2))
    assert [turns_of(f"net.relu#{k}", runs) for k in (1, 3, 4)] == [((2, 1),), ((2, 1),), ((2, 2),)]
    assert turns_of("again#3", runs) == ((3, 3),)
