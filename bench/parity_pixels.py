"""The peers' maps of pixels, for `bench/parity.py`: what each makes of a class, (n, H, W)."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytorch_grad_cam
import torch
from captum.attr import (
    GuidedBackprop,
    GuidedGradCam,
    IntegratedGradients,
    NoiseTunnel,
    Occlusion,
    Saliency,
)
from captum.attr._core.gradient_shap import InputBaselineXGradient
from numpy.typing import NDArray
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor

from cam.methods.background import background_of, draws
from cam.methods.pixels import NOISE

if TYPE_CHECKING:
    from bench.parity import Ask, Scene

WINDOWS = 7
"""Occlusion's, along each side."""
BUDGETS = {
    "integratedgradients": 8,
    "expectedgradients": 8,
    "occlusion": WINDOWS**2,
    "smoothgrad": 8,
}
"""cam's and the peers' alike: fewer passes than cam's default say as much."""


def saliency(scene: Scene, index: int) -> NDArray[np.float32]:
    return strongest(Saliency(scene.model).attribute(scene.fresh(), index))


def smoothed_saliency(scene: Scene, index: int) -> NDArray[np.float32]:
    """It draws its noise from torch's own generator, which the seed makes the same as cam's."""
    torch.manual_seed(0)
    images = scene.fresh()
    found = NoiseTunnel(Saliency(scene.model)).attribute(
        images,
        nt_samples=BUDGETS["smoothgrad"],
        stdevs=NOISE * float(images.max() - images.min()),
        target=index,
        abs=False,
    )
    return strongest(found)


def integrated_gradients(scene: Scene, index: int) -> NDArray[np.float32]:
    found = IntegratedGradients(scene.model).attribute(
        scene.fresh(),
        baselines=0,
        target=index,
        n_steps=BUDGETS["integratedgradients"],
        method="riemann_middle",
    )
    return found.detach().sum(1).numpy()


def expected_gradients(scene: Scene, index: int) -> NDArray[np.float32]:
    """The part of its GradientShap that follows its draws, at cam's draws."""
    background = background_of(scene.model, scene.images)
    turns, alphas = draws(len(background), BUDGETS["expectedgradients"])
    images = scene.images.expand(len(turns), -1, -1, -1)
    with patch("numpy.random.uniform", return_value=alphas.numpy()):
        found = InputBaselineXGradient(scene.model).attribute(images, background[turns], index)
    return found.detach().mean(0, keepdim=True).sum(1).numpy()


def occlusion(scene: Scene, index: int) -> NDArray[np.float32]:
    """Windows of two cells that move by one, as in cam."""
    cell = scene.images.shape[-1] // (WINDOWS + 1)
    found = Occlusion(lambda images: scene.model(images).softmax(1)).attribute(
        scene.images,
        sliding_window_shapes=(3, 2 * cell, 2 * cell),
        strides=(3, cell, cell),
        baselines=0,
        target=index,
        perturbations_per_eval=WINDOWS,
    )
    return found[:, 0].numpy()


def captums_guided(scene: Scene, index: int) -> NDArray[np.float32]:
    return strongest(GuidedBackprop(scene.model).attribute(scene.fresh(), index))


def captums_guided_grad_cam(scene: Scene, index: int) -> NDArray[np.float32]:
    """Its map resized as in the paper and in cam; its own default repeats cells."""
    peer = GuidedGradCam(scene.model, scene.target)
    return strongest(peer.attribute(scene.fresh(), index, interpolate_mode="bilinear"))


def grad_cams_guided(scene: Scene, index: int) -> NDArray[np.float32]:
    """One image at a time; of a copy, for it puts its own layers in the place of the model's."""
    peer = pytorch_grad_cam.GuidedBackpropReLUModel(copy.deepcopy(scene.model))
    found = [peer(image[None].clone(), target_category=index) for image in scene.images]
    return np.abs(np.stack(found)).max(axis=-1)


def full_grad(scene: Scene, index: int) -> NDArray[np.float32]:
    with pytorch_grad_cam.FullGrad(scene.model, []) as peer:
        return peer(scene.images, [ClassifierOutputTarget(index)] * len(scene.images))


def strongest(attributions: Tensor) -> NDArray[np.float32]:
    """Of the colour channels, (n, C, H, W) → (n, H, W)."""
    return attributions.detach().abs().amax(1).numpy()


PIXELS: dict[tuple[str, str], Ask] = {
    ("guidedbackprop", "grad-cam"): grad_cams_guided,
    ("fullgrad", "grad-cam"): full_grad,
    ("gradient", "captum"): saliency,
    ("smoothgrad", "captum"): smoothed_saliency,
    ("integratedgradients", "captum"): integrated_gradients,
    ("expectedgradients", "captum"): expected_gradients,
    ("guidedbackprop", "captum"): captums_guided,
    ("guidedgradcam", "captum"): captums_guided_grad_cam,
    ("occlusion", "captum"): occlusion,
}
"""(method, peer) → how it is asked."""
