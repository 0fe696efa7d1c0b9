"""What hooks see: the tutorials' own examples, and a real network's layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

from cam import ClassTarget, gallery, observe
from cam.activations.observations import statistics
from cam.errors import UnknownLayer
from tests.zoo.by_hand import forked, of_the_tutorials
from tests.zoo.parts import Net, hook_count, scored


def test_inputs_and_outputs_equal_what_forward_computes() -> None:
    torch.manual_seed(0)
    seen: dict[str, Tensor] = {}
    model = of_the_tutorials(seen).eval()
    for found in observe(model, torch.randn(1, 3, 2, 2), ["fc1", "fc2"], ClassTarget()):
        expected = {name: tensor.detach().numpy()[0] for name, tensor in seen.items()}
        assert found.input is not None
        np.testing.assert_allclose(found.input, expected[f"{found.layer}.input"])
        np.testing.assert_allclose(found.output, expected[f"{found.layer}.output"])
    assert hook_count(model) == 0


def test_the_gradient_at_y_of_the_mean_of_four_is_a_quarter() -> None:
    model = scored(lambda x, y: y(x**2).mean((1, 2, 3)), y=nn.Identity())
    (found,) = observe(model, torch.ones(1, 1, 2, 2) * 3, ["y"], ClassTarget(0))
    np.testing.assert_array_equal(found.output, np.full((1, 2, 2), 9))
    assert found.gradient is not None
    np.testing.assert_array_equal(found.gradient, np.full((1, 2, 2), 0.25))


def test_kernels_of_ones_and_twos_on_ones_give_nines_and_eighteens() -> None:
    conv = nn.Conv2d(1, 2, 3, bias=False)
    with torch.no_grad():
        conv.weight[0], conv.weight[1] = 1, 2
    model = nn.Sequential(conv, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    (found,) = observe(model, torch.ones(1, 1, 4, 4), ["0"], ClassTarget(1))
    np.testing.assert_array_equal(found.output, [np.full((2, 2), 9), np.full((2, 2), 18)])
    assert found.strongest(2, "activation") == [1, 0]
    assert found.strongest(1, "gradient") == [1]
    assert found.gradient is not None
    np.testing.assert_array_equal(found.gradient, [np.zeros((2, 2)), np.full((2, 2), 0.25)])


def test_statistics_by_hand() -> None:
    found = statistics(np.array([0, 0, 3, -1], np.float32))
    assert (found.mean, found.minimum, found.maximum, found.zeros) == (0.5, -1, 3, 0.5)
    assert found.std == pytest.approx(1.5)  # √((0.25 + 0.25 + 6.25 + 2.25) / 4)


def test_a_layer_that_the_target_does_not_need_has_no_gradient() -> None:
    seen, unused = observe(forked(), torch.randn(1, 3, 2, 2), ["seen", "unused"], ClassTarget(0))
    assert seen.gradient is not None
    assert unused.gradient is None
    assert unused.strongest(2, "gradient") == []


@pytest.mark.slow
def test_a_real_networks_maps_at_every_depth() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet34().eval()
    layers = ["conv1", "layer2.0.conv1", "layer4.2.conv2", "fc"]
    image = torch.randn(1, 3, 64, 64)
    for found, side in zip(
        observe(model, image, layers, ClassTarget()), (32, 8, 2, 0), strict=True
    ):
        maps = found.maps
        if not side:
            assert maps is None
            continue
        assert maps is not None
        assert maps.shape[1:] == (side, side)
        chosen = found.strongest(9, "gradient")
        picture = gallery([maps[index] for index in chosen], [str(each) for each in chosen])
        assert picture.shape == (3 * (112 + 18 + 6) + 6, 3 * (112 + 6) + 6, 3)
    assert hook_count(model) == 0
    with pytest.raises(UnknownLayer):
        observe(model, image, ["conv9"], ClassTarget())
    assert hook_count(model) == 0


def test_a_tile_shows_its_map_cell_by_cell() -> None:
    picture = gallery([np.array([[0, 1], [1, 0]], np.float32)], [""], side=20, colormap="bone")
    tile = picture[6:26, 6:26].astype(int).sum(axis=2)
    assert tile[:10, :10].max() < 50  # bone: 0 is black, 1 is white
    assert tile[:10, 10:].min() > 700
    assert tile[10:, :10].min() > 700
    assert (picture[:6] == 255).all()


def test_all_windows_are_shown() -> None:
    """The model looks at four windows of the image by themselves."""

    def of_windows(x: Tensor, each: nn.Module, head: nn.Module) -> Any:
        windows = x[:, 0].unfold(1, 4, 4).unfold(2, 4, 4).reshape(-1, 16)
        return head(each(windows).mean(0, keepdim=True))

    torch.manual_seed(6)
    model = Net(of_windows, each=nn.Linear(16, 5), head=nn.Linear(5, 2)).eval()
    x = torch.randn(1, 3, 8, 8)
    (found,) = observe(model, x, ("each",), ClassTarget(1))
    assert found.input is not None
    assert found.gradient is not None
    assert found.input.shape == (4, 16)
    assert found.output.shape == found.gradient.shape == (4, 5)
    expected = model.each(torch.from_numpy(found.input)).detach().numpy()
    np.testing.assert_allclose(found.output, expected, rtol=1e-5)
