"""Each method on one 2 × 2 case worked by hand, its edge cases, and against pytorch-grad-cam."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
import torchvision
from pytorch_grad_cam import (
    KPCA_CAM,
    EigenGradCAM,
    GradCAM,
    GradCAMElementWise,
    HiResCAM,
    LayerCAM,
    SegEigenCAM,
    XGradCAM,
)
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from cam import explain
from cam.drawing.heatmap import minmax
from cam.errors import GridTooLarge, UnknownMethod
from cam.methods import METHODS, method_named
from cam.methods.components import eigencam, fem, kpcacam
from cam.methods.method import load
from cam.passes.maps import apply

# Two channels:      A_1        A_2            G_1        G_2
A = torch.tensor([[[[1.0, 2], [3, 4]], [[1, 0], [0, 1]]]])
G = torch.tensor([[[[2.0, 0], [0, 1]], [[-4, -1], [0, 1]]]])

S = 221**0.5
EIGEN = (25 + (S - 14) ** 2) ** -0.5
T = 1.875 + 3.765625**0.5
GRAD = (0.25 + T**2) ** -0.5
SEG = 20.265625**0.5 - 0.125
SEGS = (4.5**2 + SEG**2) ** -0.5

BY_HAND: dict[str, list[list[float]] | None] = {
    # α = 3/4, -1:                 0.75 A_1 - A_2 = [[-0.25, 1.5], [2.25, 2]]
    "gradcam": [[0, 1.5], [2.25, 2]],
    # α_1 = 2/(8 + 8·10) = 1/22 at G = 2, 1/12 at G = 1: w_1 = 2/22 + 1/12 = 23/132;
    # α_2 = 1/(2 + 2) at G = 1: w_2 = 1/4:  23/132 A_1 + 1/4 A_2
    "gradcam++": [[56 / 132, 46 / 132], [69 / 132, 125 / 132]],
    # G_1 ⊙ A_1 + G_2 ⊙ A_2 = [[2 - 4, 0], [0, 4 + 1]]
    "hirescam": [[0, 0], [0, 5]],
    # relu([[2, 0], [0, 4]]) + relu([[-4, 0], [0, 1]])
    "elementwise": [[2, 0], [0, 5]],
    # relu(G_1) ⊙ A_1 + relu(G_2) ⊙ A_2 = [[2 + 0, 0], [0, 4 + 1]]
    "layercam": [[2, 0], [0, 5]],
    # α_1 = (1·2 + 4·1)/10 = 0.6, α_2 = (1·-4 + 1·1)/2 = -1.5
    "xgradcam": [[0, 1.2], [1.8, 0.9]],
    # X = [[1, 1], [2, 0], [3, 0], [4, 1]], XᵀX = [[30, 5], [5, 2]] with first eigenvalue
    # 16 + √221, so v ~ (5, √221 - 14): X v.
    "eigencam": [
        [5 * EIGEN + (S - 14) * EIGEN, 10 * EIGEN],
        [15 * EIGEN, 20 * EIGEN + (S - 14) * EIGEN],
    ],
    # G ⊙ A, centred: X = [[.5, -3.25], [-1.5, .75], [-1.5, .75], [2.5, 1.75]],
    # XᵀX = [[11, .5], [.5, 14.75]] with first eigenvalue 12.875 + √3.765625, so
    # v ~ (.5, 1.875 + √3.765625); Xv agrees with X's row sums (-2.75, -.75, -.75, 4.25).
    "eigengradcam": [
        [0, (-0.75 + 0.75 * T) * GRAD],
        [(-0.75 + 0.75 * T) * GRAD, (1.25 + 1.75 * T) * GRAD],
    ],
    # |G| ⊙ A, centred: X = [[.5, 2.75], [-1.5, -1.25], [-1.5, -1.25], [2.5, -.25]],
    # XᵀX = [[11, 4.5], [4.5, 10.75]] with first eigenvalue 10.875 + √20.265625, so
    # v ~ (4.5, √20.265625 - 0.125); of Xv the first is the greatest, above 0 and in size.
    "segeigencam": [
        [(0.5 * 4.5 + 2.75 * SEG) * SEGS, 0],
        [0, (2.5 * 4.5 - 0.25 * SEG) * SEGS],
    ],
    # By its own case below: tanh has no round numbers.
    "kpcacam": None,
    # Of four positions none is two standard deviations above the mean.
    "fem": [[0, 0], [0, 0]],
}


def test_every_method_is_worked_by_hand() -> None:
    elsewhere = {"finercam", "refinecam", "odam"}  # in their own files
    assert set(BY_HAND) | elsewhere == set(ONE_PASS)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_the_functions_that_its_entry_names(name: str) -> None:
    method = METHODS[name]
    for function in (method.function, method.fusion, method.score):
        assert function is None or callable(load(function))
    assert (method.levels is None) == (method.fusion is None)


def one_pass(method: str) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, g: apply(method, a, g)[0].relu()


ONE_PASS = {name: one_pass(name) for name, each in METHODS.items() if each.formula != "steps"}
WORKED = [name for name, values in BY_HAND.items() if values]


@pytest.mark.parametrize("method", WORKED)
def test_by_hand(method: str) -> None:
    torch.testing.assert_close(
        ONE_PASS[method](A, G), torch.tensor([BY_HAND[method]], dtype=torch.float32)
    )


def test_kpcacam_by_hand() -> None:
    # One channel, two positions 0 and 2, centred -1 and 1: κ = [[tanh 2, 0], [0, tanh 2]].
    # Centred it is [[c, -c], [-c, c]] with c = tanh(2) / 2, eigenvalue 2c, eigenvector
    # (-1, 1) / √2: the projections are ∓√c, and those that agree with (0, 2) are (-√c, √c).
    c = math.tanh(2) / 2
    found = kpcacam(torch.tensor([[[[0.0, 2.0]]]]), torch.zeros(1, 1, 1, 2)).maps
    torch.testing.assert_close(found, torch.tensor([[[0.0, c**0.5]]]))


def test_kpcacam_refuses_a_grid_whose_square_would_not_fit() -> None:
    with pytest.raises(GridTooLarge, match=r"33 × 32 positions .* at most 1024"):
        kpcacam(torch.zeros(1, 1, 33, 32), torch.zeros(1, 1, 33, 32))


def test_fem_by_hand() -> None:
    # Nine positions, one of them 9: μ = 1, σ = √(81/9 - 1) = 2.83, so 9 ≥ 1 + 2σ; the channel
    # weighs μ. A constant channel has nothing that stands out.
    a = torch.zeros(1, 2, 3, 3)
    a[0, 0, 1, 2] = 9
    a[0, 1] = 5
    expected = torch.zeros(1, 3, 3)
    expected[0, 1, 2] = 1
    torch.testing.assert_close(fem(a, torch.zeros_like(a)), expected)


def test_a_component_never_comes_out_inverted() -> None:
    """pytorch-grad-cam's Eigen-CAM leaves the sign of the singular vector to chance."""
    for seed in range(20):
        a = 0.3 * torch.rand(1, 6, 4, 4, generator=torch.Generator().manual_seed(seed))
        a[:, :, 1:3, 1:3] += 1  # an object that every channel sees
        for method in (eigencam, kpcacam):
            heat = method(a, torch.zeros_like(a)).maps[0]
            assert heat[1:3, 1:3].mean() > 2 * heat[0].mean(), (seed, method)


def test_both_ways_to_a_component_agree() -> None:
    """More positions than channels, and fewer, take different decompositions."""
    wide = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([wide, torch.zeros(2, 30, 4, 5)], 1)
    for name in ("eigencam", "eigengradcam"):
        one = ONE_PASS[name](wide, wide)
        torch.testing.assert_close(one, ONE_PASS[name](padded, padded))


@pytest.mark.parametrize("method", WORKED)
def test_images_of_a_batch_do_not_mix(method: str) -> None:
    rng = torch.Generator().manual_seed(0)
    a, g = torch.rand(3, 4, 5, 6, generator=rng), torch.randn(3, 4, 5, 6, generator=rng)
    together = ONE_PASS[method](a, g)
    for i in range(3):
        torch.testing.assert_close(
            together[i : i + 1], ONE_PASS[method](a[i : i + 1], g[i : i + 1])
        )


@pytest.mark.parametrize("method", WORKED)
def test_computes_in_float32(method: str) -> None:
    half = ONE_PASS[method](A.bfloat16(), G.bfloat16())
    torch.testing.assert_close(half, torch.tensor([BY_HAND[method]], dtype=torch.float32))


@pytest.mark.parametrize("method", ONE_PASS)
def test_half_precision_costs_nothing_but_its_own_rounding(method: str) -> None:
    """Sums over many positions in bfloat16 would keep two digits."""
    rng = torch.Generator().manual_seed(5)
    a = torch.rand(2, 3, 8, 8, generator=rng).bfloat16()
    g = torch.randn(2, 3, 8, 8, generator=rng).bfloat16()
    found = ONE_PASS[method](a, g)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, ONE_PASS[method](a.float(), g.float()))


def test_gradcam_plusplus_is_exact_where_the_cube_of_the_gradient_underflows() -> None:
    # α = 1 / (2 + 1e-20 · 10) = 1/2 at each G > 0, so w_1 = 1.5e-20 and w_2 = 0.5e-20.
    found = ONE_PASS["gradcam++"](A, G * 1e-20) * 1e20
    torch.testing.assert_close(found, torch.tensor([[[2.0, 3.0], [4.5, 6.5]]]))


def test_gradcam_plusplus_has_no_weight_where_the_denominator_is_zero() -> None:
    # Σ A = -2 and G = 1: 2 + 1·(-2) = 0. Nothing is left, below 0 neither.
    a, g = torch.full((1, 1, 1, 2), -1.0), torch.ones(1, 1, 1, 2)
    torch.testing.assert_close(apply("gradcam++", a, g)[0], torch.zeros(1, 1, 2))


def test_xgradcam_ignores_a_channel_without_activation() -> None:
    silent = torch.zeros(1, 1, 2, 2)
    found = ONE_PASS["xgradcam"](
        torch.cat([A, silent], 1), torch.cat([G, torch.ones(1, 1, 2, 2)], 1)
    )
    torch.testing.assert_close(found, torch.tensor([BY_HAND["xgradcam"]]))


def test_what_needs_the_layers_gradient_in_one_pass() -> None:
    needs = {name: method.differentiates for name, method in METHODS.items()}
    assert needs["gradcam"]
    assert needs["finercam"]
    assert not needs["eigencam"]  # no class
    assert not needs["scorecam"]  # many passes
    assert not needs["rollout"]  # neither


def test_eigen_smoothing_in_half_precision_costs_nothing_but_its_own_rounding() -> None:
    rng = torch.Generator().manual_seed(5)
    a = torch.rand(2, 3, 8, 8, generator=rng).bfloat16()
    g = torch.randn(2, 3, 8, 8, generator=rng).bfloat16()
    for name in ("hirescam", "gradcam"):
        found = apply(name, a, g, eigen=True)
        torch.testing.assert_close(found, apply(name, a.float(), g.float(), eigen=True))


def weights_of(method: str, a: Tensor, g: Tensor) -> Tensor:
    weights: Tensor = load(METHODS[method].function)(a, g)
    return weights


def test_weights_by_hand() -> None:
    """Of channels that hold zeros, sum to 0 or sum to 1."""
    a = torch.tensor([[[[0.0, 2, -1]], [[1, -1, 0]], [[1, 0, 0]]]])
    g = torch.tensor([[[[1.0, 3, -2]], [[1, 0, 0]], [[3, 5, 7]]]])
    expected = torch.tensor([[[[0.0, 3, -2]], [[1, 0, 0]], [[3, 0, 0]]]])
    torch.testing.assert_close(weights_of("elementwise", a, g), expected)
    # (0·1 + 2·3 + -1·-2) / 1; Σ A = 0, so nothing; 1·3 / 1.
    expected = torch.tensor([8.0, 0, 3])[None, :, None, None]
    torch.testing.assert_close(weights_of("xgradcam", a, g), expected)


@pytest.mark.parametrize(
    "method", [name for name, each in METHODS.items() if each.formula == "weights"]
)
def test_weights_are_float32(method: str) -> None:
    assert weights_of(method, A.bfloat16(), G.bfloat16()).dtype == torch.float32


def test_without_the_relu_both_sides_are_there() -> None:
    # 0.75 A_1 - A_2
    found, _ = apply("gradcam", A, G)
    torch.testing.assert_close(found, torch.tensor([[[-0.25, 1.5], [2.25, 2]]]))


def test_eigen_smoothing_is_the_component_of_what_would_be_summed() -> None:
    """HiResCAM's weighted activations are G ⊙ A: smoothed it is EigenGrad-CAM."""
    found, _ = apply("hirescam", A, G, eigen=True)
    torch.testing.assert_close(found, torch.tensor([BY_HAND["eigengradcam"]]))


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


ARCHITECTURES = {"resnet50": "layer4", "vgg11": "features", "efficientnet-lite0": "bn2"}
PEERS = {
    "gradcam": GradCAM,
    "hirescam": HiResCAM,
    "elementwise": GradCAMElementWise,
    "xgradcam": XGradCAM,
    "layercam": LayerCAM,
    "eigengradcam": EigenGradCAM,
    "segeigencam": SegEigenCAM,
    "kpcacam": KPCA_CAM,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", ARCHITECTURES)
def test_parity_with_pytorch_grad_cam(build: str) -> None:
    """≤ 1e-4 at the layer's resolution, min-max normalised here, for classes that both are told.

    The peer's own normalisation adds 1e-7 to the maximum, which the small maps of random weights
    would feel. Its Grad-CAM++ is left out: see the docstring of `cam.methods.gradcam_plusplus`.
    """
    model, layer = _seeded(build), ARCHITECTURES[build]
    images = torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(3))
    for method, peer in PEERS.items():
        shown = 0
        for wanted in (285, 967):
            ours = explain(model, images, target=wanted, method=method, layer=layer)
            with peer(model=model, target_layers=[model.get_submodule(layer)]) as cam:
                theirs = peer_maps(cam, images, wanted)
            for explanation, expected in zip(ours, theirs, strict=True):
                # The sign of a component is left to chance there.
                signs = (1, -1) if method in ("eigengradcam", "kpcacam") else (1,)
                difference = min(
                    np.abs(minmax(explanation.map) - minmax(np.maximum(sign * expected, 0))).max()
                    for sign in signs
                )
                assert difference <= 1e-4, (build, method, wanted, difference)
                shown += bool(np.ptp(expected) > 0)
        assert shown >= 2, (build, method)  # where both are all zeros, nothing was compared


def peer_maps(cam: GradCAM, images: Tensor, wanted: int) -> list[np.ndarray]:
    """The peer's maps at layer resolution, before it rectifies, normalises and resizes."""
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
    return [each.astype(np.float32) for each in maps]
