"""Each method on one 2 × 2 case worked by hand, its edge cases, and against pytorch-grad-cam."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
import torchvision
from pytorch_grad_cam import GradCAM, HiResCAM, LayerCAM, XGradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from cam import METHODS, explain
from cam.errors import UnknownMethod
from cam.heatmap import minmax
from cam.methods import gradcam_plusplus, method_named, xgradcam

# Two channels:      A_1        A_2            G_1        G_2
A = torch.tensor([[[[1.0, 2], [3, 4]], [[1, 0], [0, 1]]]])
G = torch.tensor([[[[2.0, 0], [0, 1]], [[-4, -1], [0, 1]]]])

BY_HAND = {
    # α = 3/4, -1:                 0.75 A_1 - A_2 = [[-0.25, 1.5], [2.25, 2]]
    "gradcam": [[0, 1.5], [2.25, 2]],
    # α_1 = 2/(8 + 8·10) = 1/22 at G = 2, 1/12 at G = 1: w_1 = 2/22 + 1/12 = 23/132;
    # α_2 = 1/(2 + 2) at G = 1: w_2 = 1/4:  23/132 A_1 + 1/4 A_2
    "gradcam++": [[56 / 132, 46 / 132], [69 / 132, 125 / 132]],
    # G_1 ⊙ A_1 + G_2 ⊙ A_2 = [[2 - 4, 0], [0, 4 + 1]]
    "hirescam": [[0, 0], [0, 5]],
    # relu(G_1) ⊙ A_1 + relu(G_2) ⊙ A_2 = [[2 + 0, 0], [0, 4 + 1]]
    "layercam": [[2, 0], [0, 5]],
    # α_1 = (1·2 + 4·1)/10 = 0.6, α_2 = (1·-4 + 1·1)/2 = -1.5
    "xgradcam": [[0, 1.2], [1.8, 0.9]],
}


def test_every_method_is_worked_by_hand() -> None:
    assert set(BY_HAND) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_by_hand(method: str) -> None:
    torch.testing.assert_close(
        METHODS[method](A, G), torch.tensor([BY_HAND[method]], dtype=torch.float32)
    )


@pytest.mark.parametrize("method", METHODS)
def test_images_of_a_batch_do_not_mix(method: str) -> None:
    rng = torch.Generator().manual_seed(0)
    a, g = torch.rand(3, 4, 5, 6, generator=rng), torch.randn(3, 4, 5, 6, generator=rng)
    together = METHODS[method](a, g)
    for i in range(3):
        torch.testing.assert_close(together[i : i + 1], METHODS[method](a[i : i + 1], g[i : i + 1]))


@pytest.mark.parametrize("method", METHODS)
def test_computes_in_float32(method: str) -> None:
    half = METHODS[method](A.bfloat16(), G.bfloat16())
    torch.testing.assert_close(half, torch.tensor([BY_HAND[method]], dtype=torch.float32))


def test_gradcam_plusplus_is_exact_where_the_cube_of_the_gradient_underflows() -> None:
    # α = 1 / (2 + 1e-20 · 10) = 1/2 at each G > 0, so w_1 = 1.5e-20 and w_2 = 0.5e-20.
    found = gradcam_plusplus(A, G * 1e-20) * 1e20
    torch.testing.assert_close(found, torch.tensor([[[2.0, 3.0], [4.5, 6.5]]]))


def test_gradcam_plusplus_has_no_weight_where_the_denominator_is_zero() -> None:
    # Σ A = -2 and G = 1: 2 + 1·(-2) = 0.
    found = gradcam_plusplus(torch.full((1, 1, 1, 2), -1.0), torch.ones(1, 1, 1, 2))
    torch.testing.assert_close(found, torch.zeros(1, 1, 2))


def test_xgradcam_ignores_a_channel_without_activation() -> None:
    silent = torch.zeros(1, 1, 2, 2)
    found = xgradcam(torch.cat([A, silent], 1), torch.cat([G, torch.ones(1, 1, 2, 2)], 1))
    torch.testing.assert_close(found, torch.tensor([BY_HAND["xgradcam"]]))


def test_an_unknown_method_names_those_that_exist() -> None:
    with pytest.raises(
        UnknownMethod, match="no method 'gradcamm'; the methods are gradcam, gradcam"
    ):
        method_named("gradcamm")


def _seeded(build: str) -> nn.Module:
    torch.manual_seed(0)
    if build == "efficientnet-lite0":
        model: nn.Module = timm.create_model("tf_efficientnet_lite0")
    else:
        model = torchvision.models.get_model(build, weights=None)
    return model.eval()


ARCHITECTURES = {"resnet50": "layer4", "vgg16": "features", "efficientnet-lite0": "bn2"}
PEERS = {"gradcam": GradCAM, "hirescam": HiResCAM, "xgradcam": XGradCAM, "layercam": LayerCAM}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", ARCHITECTURES)
def test_parity_with_pytorch_grad_cam(build: str) -> None:
    """≤ 1e-4 at the layer's resolution, min-max normalised here, for classes that both are told.

    The peer's own normalisation adds 1e-7 to the maximum, which the small maps of random weights
    would feel. Its Grad-CAM++ is left out: see the docstring of `cam.methods.gradcam_plusplus`.
    """
    model, layer = _seeded(build), ARCHITECTURES[build]
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(3))
    for method, peer in PEERS.items():
        shown = 0
        for wanted in (1, 285, 967):
            ours = explain(model, images, target=wanted, method=method, layer=layer)
            with peer(model=model, target_layers=[model.get_submodule(layer)]) as cam:
                theirs = _peer_maps(cam, images, wanted)
            for explanation, expected in zip(ours, theirs, strict=True):
                difference = np.abs(minmax(explanation.map) - minmax(expected)).max()
                assert difference <= 1e-4, (build, method, wanted, difference)
                shown += bool(np.ptp(expected) > 0)
        assert shown >= 2, (build, method)  # where both are all zeros, nothing was compared


def _peer_maps(cam: GradCAM, images: Tensor, wanted: int) -> list[np.ndarray]:
    """The peer's maps at layer resolution, rectified, before it normalises and resizes."""
    outputs = cam.activations_and_grads(images)
    targets = [ClassifierOutputTarget(wanted)] * len(images)
    cam.model.zero_grad()
    sum(target(output) for target, output in zip(targets, outputs, strict=True)).backward()
    maps = cam.get_cam_image(
        images,
        cam.target_layers[0],
        targets,
        cam.activations_and_grads.activations[0].cpu().data.numpy(),
        cam.activations_and_grads.gradients[0].cpu().data.numpy(),
        eigen_smooth=False,
    )
    return [np.maximum(each, 0).astype(np.float32) for each in maps]
