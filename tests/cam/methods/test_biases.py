"""FullGrad: by hand, and that nothing of the score is lost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from cam import explain
from cam.errors import MethodUnsuited
from tests.zoo.by_hand import rectified
from tests.zoo.convolutional import UnsaidFrozenBatchNorm2d, small
from tests.zoo.parts import as_after_training, hook_count, images


def test_by_hand() -> None:
    # Z = 3, -3, 1, 7: y = (3 + 0 + 1 + 7) / 4. X ⊙ ∂y/∂X = 1·½, 0, 0, 3·½ → 1/3, 0, 0, 1;
    # b ⊙ ∂y/∂Z = ¼, 0, ¼, ¼ → 1, 0, 1, 1.
    photo = torch.tensor([[[[1.0, -2], [0, 3]]]])
    (found,) = explain(rectified([2.0], [1.0]), photo, target=0, method="fullgrad")
    np.testing.assert_allclose(found.map, np.array([[4 / 3, 0], [1, 2]]), rtol=1e-6)
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(2.75)
    assert found.completeness.difference == pytest.approx(2.75)


@pytest.mark.parametrize("target", [0, 1])
def test_a_layers_maps_are_scaled_together(target: int) -> None:
    # Z = (3, -3, 1, 7), (4, 1, 3, 6). b ⊙ ∂y/∂Z = (¼, 0, ¼, ¼), (¾, ¾, ¾, ¾) → thirds of ¾, one
    # minimum and one maximum for both: (⅓, 0, ⅓, ⅓), (1, 1, 1, 1); the second alone would be 0.
    # X ⊙ ∂y/∂X = (1, -2, 0, 3) ⊙ (¾, ¼, ¾, ¾) = (¾, -½, 0, 9/4) → (⅓, 2/9, 0, 1).
    photo, model = torch.tensor([[[[1.0, -2], [0, 3]]]]), rectified([2.0, 1.0], [1.0, 3.0])
    (found,) = explain(model, photo, target=target, method="fullgrad")
    np.testing.assert_allclose(found.map, np.array([[5 / 3, 11 / 9], [4 / 3, 7 / 3]]), rtol=1e-6)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    found: dict[str, nn.Module] = {
        "vgg11_bn": torchvision.models.vgg11_bn(),
        "resnet18": torchvision.models.resnet18(),
        "resnet10t of timm": timm.create_model("resnet10t"),
        "small": small(inplace=True),
    }
    return {name: as_after_training(model) for name, model in found.items()}


@pytest.mark.slow
def test_the_shares_add_up_to_the_score() -> None:
    """Proposition 1, of rectifiers in and out of place, with batch normalisation and without."""
    for name, model in networks().items():
        x = images(1, size=8 if name == "small" else 64)
        (found,) = explain(model, x, target=2, method="fullgrad")
        assert found.completeness is not None
        attributed, wanted = found.completeness.attributed, found.completeness.difference
        assert attributed == pytest.approx(wanted, rel=1e-3, abs=1e-4), name
        assert hook_count(model) == 0
        assert np.ptp(found.map) > 0


def test_layer_normalisation_is_refused() -> None:
    model = torchvision.models.convnext_tiny().eval()
    with pytest.raises(MethodUnsuited, match="without layer, group or instance normalisation"):
        explain(model, images(1, size=64), method="fullgrad")
    bare = nn.Sequential(nn.Conv2d(3, 2, 1, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(MethodUnsuited, match="convolutions with biases"):
        explain(bare, images(1), method="fullgrad")
    assert hook_count(bare) == 0


@pytest.mark.parametrize("norm", [weight_norm, spectral_norm])
def test_parametrised_layers_keep_their_biases(norm: Callable[[nn.Module], nn.Module]) -> None:
    model = small()
    for name in ("conv1", "conv2", "head"):
        norm(model.get_submodule(name))
    (found,) = explain(model, images(1), target=2, method="fullgrad")
    assert found.completeness is not None
    attributed, wanted = found.completeness.attributed, found.completeness.difference
    assert attributed == pytest.approx(wanted, rel=1e-4)


def test_normalised_vectors_add_their_biases_too() -> None:
    torch.manual_seed(3)
    norm = as_after_training(nn.BatchNorm1d(6))
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 6),
        norm,
        nn.ReLU(),
        nn.Linear(6, 3),
    ).eval()
    (found,) = explain(model, images(1), target=1, method="fullgrad")
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(found.completeness.difference, rel=1e-4)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.InstanceNorm2d(4)])
def test_what_normalises_each_image_is_refused(norm: nn.Module) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    with pytest.raises(MethodUnsuited, match="without layer, group or instance normalisation"):
        explain(model.eval(), images(1), method="fullgrad")


@pytest.mark.parametrize(
    "layers",
    [
        # Nothing scaled and nothing added after the mean is taken away: -μ / σ.
        [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, affine=False)],
        [nn.ConvTranspose2d(3, 4, 2, stride=2), nn.Identity()],
        [nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4, eps=0.5)],
    ],
)
def test_whatever_adds_a_bias_is_complete(layers: list[nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        *layers,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3),
    ).eval()
    as_after_training(model)
    (found,) = explain(model, images(1), target=1, method="fullgrad")
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(found.completeness.difference, rel=1e-4)
    with torch.no_grad():
        assert found.completeness.difference == pytest.approx(float(model(images(1))[0, 1]))


def test_a_layer_whose_shares_are_all_alike_adds_nothing() -> None:
    # Each pixel's bias has the same share, ¼, so its ψ is 0; what is left is the photo's.
    photo = torch.tensor([[[[1.0, 2], [0, 3]]]])
    (found,) = explain(rectified([2.0], [1.0]), photo, target=0, method="fullgrad")
    np.testing.assert_allclose(found.map, np.array([[1 / 3, 2 / 3], [0, 1]]), rtol=1e-6)


def test_feature_maps_are_enlarged_bilinearly() -> None:
    # Z = 3 and -3 at the first row's ends, 1 and 7 at the second's: b ⊙ ∂y/∂Z → [[1, 0], [1, 1]],
    # enlarged to weights (1, 3/4, 1/4, 0) of the left and the upper side. X ⊙ ∂y/∂X is 0 but for
    # 1·½ → 1/3 and 3·½ → 1 where they are read.
    photo = torch.zeros(1, 1, 4, 4)
    photo[0, 0, ::2, ::2] = torch.tensor([[1.0, -2], [0, 3]])
    (found,) = explain(rectified([2.0], [1.0], step=2), photo, target=0, method="fullgrad")
    side = torch.tensor([1, 0.75, 0.25, 0])
    expected = 1 - torch.outer(side, 1 - side)  # all but the upper right
    expected[0, 0] += 1 / 3
    expected[2, 2] += 1
    np.testing.assert_allclose(found.map, expected, rtol=1e-6)


def test_root_mean_square_normalisation_is_refused() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), nn.RMSNorm(36), nn.Flatten())
    with pytest.raises(MethodUnsuited, match="without layer, group or instance normalisation"):
        explain(model.eval(), images(1), method="fullgrad")


def test_a_bias_of_vectors_alone_is_not_enough() -> None:
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    with pytest.raises(MethodUnsuited, match="convolutions with biases: this model has none"):
        explain(model.eval(), images(1), method="fullgrad")


@pytest.mark.parametrize("kind", ["torchvision", "timm", "no ε"])
def test_frozen_normalisations_add_their_biases_too(kind: str) -> None:
    """Of convolutions without biases they have all there is."""
    torch.manual_seed(3)
    norm: nn.Module = torchvision.ops.FrozenBatchNorm2d(4, eps=1e-5 if kind == "no ε" else 0.1)
    if kind == "timm":
        norm = timm.layers.FrozenBatchNormAct2d(4, eps=0.1)
    for name, buffer in norm.named_buffers():
        nn.init.uniform_(buffer, 0.5, 2) if name == "running_var" else nn.init.normal_(buffer)
    if kind == "no ε":
        norm = UnsaidFrozenBatchNorm2d(norm)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        norm,
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).eval()
    (found,) = explain(model, images(1), target=1, method="fullgrad")
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(found.completeness.difference, rel=1e-4)


def test_the_least_share_is_no_heat() -> None:
    # X ⊙ ∂y/∂X = ½, 1, 3/2, 2 → 0, ⅓, ⅔, 1; the biases' shares are all ¼ and add nothing.
    photo = torch.tensor([[[[1.0, 2], [3, 4]]]])
    (found,) = explain(rectified([2.0], [1.0]), photo, target=0, method="fullgrad")
    np.testing.assert_allclose(found.map, np.array([[0, 1 / 3], [2 / 3, 1]]), rtol=1e-6)


def test_a_normalisation_that_holds_its_rectifier_adds_its_bias_before_it() -> None:
    """timm's. Behind the rectifier the gradient is another, and the shares miss the score."""
    torch.manual_seed(3)
    norm = as_after_training(timm.layers.BatchNormAct2d(4, act_layer=nn.ReLU))
    first = nn.Conv2d(3, 4, 3)
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    model = nn.Sequential(first, norm, pooled).eval()
    (found,) = explain(model, images(1), target=1, method="fullgrad")
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(found.completeness.difference, rel=1e-4)
