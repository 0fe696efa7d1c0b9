"""Layers are given by name or as modules, and a wrong name is answered with the nearest one."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from cam import Capture, explain
from cam.errors import UnknownLayer, UnknownMethod
from tests.zoo.convolutional import small
from tests.zoo.parts import images


def test_a_module_is_the_layer_of_its_name() -> None:
    model = small()
    (named,) = explain(model, images(1), layer="relu2")
    (given,) = explain(model, images(1), layer=model.relu2)
    assert given.layer == "relu2"
    torch.testing.assert_close(given.map, named.map)


def test_names_and_modules_are_mixed() -> None:
    model = small()
    found = explain(model, images(1), layer=[model.relu2, "conv1"])
    assert [each.layer for each in found] == ["relu2", "conv1"]


def test_a_sequential_is_one_layer() -> None:
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 2),
    ).eval()
    (found,) = explain(model, images(1), layer=model[0])
    assert found.layer == "0"


def test_a_module_of_another_model_is_refused() -> None:
    with pytest.raises(UnknownLayer, match="the ReLU that was given as a layer is not part of the"):
        explain(small(), images(1), layer=small().relu2)
    model = small()
    with pytest.raises(UnknownLayer, match="is the whole model and no layer of it"):
        explain(model, images(1), layer=model)
    with pytest.raises(UnknownLayer, match="layer 'relu2' is named twice"):
        explain(model, images(1), layer=["relu2", model.relu2])


def test_a_wrong_name_is_answered_with_the_nearest_one() -> None:
    words = re.escape("the model has no layer 'relu9'; did you mean 'relu")
    with pytest.raises(UnknownLayer, match=words):
        explain(small(), images(1), layer="relu9")
    with pytest.raises(UnknownLayer, match=words), Capture(small(), ["relu9"]):
        pass
    with pytest.raises(UnknownLayer, match=r"the model has no layer 'xyz'$"):
        explain(small(), images(1), layer="xyz")
    with pytest.raises(UnknownMethod, match=r"'gradcam2'; .*; did you mean 'gradcam'\?$"):
        explain(small(), images(1), method="gradcam2")
