"""Methods of many passes in any grad mode of their caller, and graphs only where they need one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cam import METHODS, ClassTarget, Target, UnitTarget, explain
from cam.errors import MethodUnsuited
from cam.passes.batch_dependence import conduct_of
from cam.positions.locate import locate
from tests.cam.methods.needs import ATTENDING
from tests.zoo.convolutional import normalising, small
from tests.zoo.parts import images

STEPS = [
    name
    for name, method in METHODS.items()
    # These need attention, or modules alone; the last a detector.
    if method.formula == "steps" and name not in (*ATTENDING, "lrp", "drise")
]
GRAPHS = {
    "gradient",
    "smoothgrad",
    "integratedgradients",
    "expectedgradients",
    "guidedbackprop",
    "fullgrad",
    "opticam",
}
"""The methods whose passes have a graph from the image on; of others at most from the layer on."""


@pytest.mark.parametrize("method", STEPS)
def test_the_callers_grad_mode_changes_nothing(method: str) -> None:
    x = images(1)

    def asked(model: nn.Module) -> np.ndarray:
        (found,) = explain(model, x, target=2, method=method, layer="net.relu2", budget=20)
        return found.map

    expected = asked(normalising(small(inplace=True)))
    assert np.isfinite(expected).all()
    for mode in (torch.no_grad(), torch.inference_mode()):
        model = normalising(small(inplace=True))
        with mode:
            np.testing.assert_array_equal(asked(model), expected)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("method", [*STEPS, "augmented gradcam"])
def test_a_model_that_changes_the_photo_in_place_gets_the_same_one_each_time(method: str) -> None:
    found = []
    for in_place in (True, False):
        x = images(1)
        (each,) = explain(
            normalising(small(inplace=True), in_place=in_place),
            x,
            target=2,
            method=method.split()[-1],
            layer="net.relu2",
            budget=20,
            smooth="augment" if " " in method else "none",
        )
        torch.testing.assert_close(x, images(1), rtol=0, atol=0)
        found.append(each.map)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("method", STEPS)
def test_a_graph_is_made_where_it_is_needed_alone(method: str) -> None:
    model, modes = normalising(small(inplace=True)), list[bool]()
    model.register_forward_pre_hook(lambda *_: modes.append(torch.is_grad_enabled()))
    locate(model, images(1), ["net.relu2"])
    conduct_of(model, images(1))
    modes.clear()
    explain(
        model,
        images(1),
        target=2,
        method=method,
        layer="net.relu2",
        budget=20,
        activation="softmax",
    )
    modes = modes[1:]  # the first pass captures
    if method == "integratedgradients":
        assert modes.pop() is False  # the two ends are scores alone
    if method == "expectedgradients":  # and so are the photo and its background, in two passes
        assert [modes.pop(), modes.pop()] == [False, False]
    if method == "guidedgradcam":
        assert modes == [True, False]
    else:
        assert set(modes) <= {method in GRAPHS}


def test_occlusion_of_a_unit_is_of_its_activation() -> None:
    """It has no probability that could stand for it."""
    model, x = small(), images(1)
    (found,) = explain(
        model, x, target=UnitTarget("relu2", 1), method="occlusion", budget=1, signed=True
    )
    with torch.no_grad():
        units = [
            model.relu2(model.conv2(model.relu1(model.conv1(each))))[0, 1].mean()
            for each in (x, 0 * x)
        ]
    np.testing.assert_allclose(found.map, np.full((8, 8), float(units[0] - units[1])), rtol=1e-4)


def test_a_unit_is_not_ablated() -> None:
    """It may lie before the layer from which the model is run again."""
    target: list[int | Target | None] = [ClassTarget(0), UnitTarget("conv1", 1)]
    with pytest.raises(MethodUnsuited, match="a target made of the model's output"):
        explain(small(), images(1), target=target, method="ablationcam", layer="relu2")
