"""CAM: by hand, as what it must equal, and where there is no such head."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models

from cam import CamError, ClassTarget, explain
from cam.errors import MethodUnsuited
from tests.cam.nets import hook_count, images, small


class Pooled(nn.Module):
    """Two feature maps, their means, a linear head with weights (2, -1), (1, 3) and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.head = nn.Linear(2, 2)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([[2.0, -1], [1, 3]]))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x[:, :2]).mean(dim=(2, 3)))
        return out


PHOTO = torch.tensor([[[[1.0, 0], [2, 0]], [[0, 3], [5, 0]], [[0, 0], [0, 0]]]])


def test_by_hand() -> None:
    def map_of(target: int | ClassTarget, *, signed: bool = True) -> list[list[float]]:
        (found,) = explain(
            Pooled(), PHOTO, target=target, method="cam", layer="layer", signed=signed
        )
        values: list[list[float]] = found.map.tolist()
        return values

    assert map_of(0) == [[2, -3], [-1, 0]]
    assert map_of(0, signed=False) == [[2, 0], [0, 0]]
    assert map_of(1) == [[1, 9], [17, 0]]
    assert map_of(ClassTarget(0, minus=1)) == [[1, -12], [-18, 0]]
    assert map_of(ClassTarget(1, against=True)) == [[-1, -9], [-17, 0]]


@pytest.mark.parametrize(
    ("build", "layer"),
    [
        ("resnet18", "layer4"),
        ("densenet121", "features"),
        ("squeezenet1_1", "features"),
        ("lite0", "bn2"),
    ],
)
def test_it_is_grad_cam_times_the_number_of_positions(build: str, layer: str) -> None:
    """Of a pooled linear head (Selvaraju et al., section 3.1); a densely connected network
    rectifies in between, so there HiResCAM says the same."""
    torch.manual_seed(0)
    lite = build == "lite0"
    model = timm.create_model("tf_efficientnet_lite0") if lite else models.get_model(build)
    model.eval()
    x = images(1, size=96)
    if build == "squeezenet1_1":
        with pytest.raises(MethodUnsuited, match="'features' this model does something else"):
            explain(model, x, target=3, method="cam", layer=layer)
        return
    (found,) = explain(model, x, target=3, method="cam", layer=layer, signed=True)
    method = "hirescam" if build == "densenet121" else "gradcam"
    (other,) = explain(model, x, target=3, method=method, layer=layer, signed=True)
    np.testing.assert_allclose(
        found.map, other.map * other.map.size, atol=1e-4 * float(np.abs(found.map).max())
    )
    assert np.ptp(found.map) > 0


@pytest.mark.parametrize(
    ("layer", "target", "words"),
    [
        ("conv1", 0, "after 'conv1' this model does something else; gradcam needs no such head"),
        ("relu2", ClassTarget(0, of="probability"), "cam explains classes' logits"),
    ],
)
def test_another_head_is_refused(layer: str, target: int | ClassTarget, words: str) -> None:
    model = small()
    with pytest.raises(CamError, match=words):
        explain(model, images(1), target=target, method="cam", layer=layer)
    assert hook_count(model) == 0
