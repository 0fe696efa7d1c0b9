"""Maps on the accelerator equal those on the CPU: every method, every precision."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from cam import METHODS, ClassTarget, SimilarityTarget, Target, UnitTarget, embed, explain
from cam.agreement import spearman
from tests.cam.methods.needs import ATTENDING, DETECTING
from tests.quick import quick
from tests.zoo.convolutional import OfModules, segmenter, small
from tests.zoo.detectors import detector

CLASSIFYING = [name for name in METHODS if name not in (*ATTENDING, *DETECTING)]
RANDOM = ("smoothgradcam++", "smoothgrad", "sscam", "rise")
"""Methods with noise or random masks; the generator is seeded on the CPU for all devices."""


def images(count: int, size: int) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(3))


def on(device: torch.device, model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).to(device)


def same(
    model: nn.Module, x: Tensor, device: torch.device, *, tolerance: float = 1e-4, **asked: object
) -> None:
    """Check that all maps of two explanations, on the CPU and on the device, are the same."""
    here = explain(model, x, **asked)  # type: ignore[arg-type]
    there = explain(on(device, model), x.to(device), **asked)  # type: ignore[arg-type]
    assert len(here) == len(there) > 0
    for one, other in zip(here, there, strict=True):
        peak = max(float(np.abs(one.map).max()), 1e-12)
        assert np.abs(one.map - other.map).max() <= tolerance * peak
        assert one.layer == other.layer
        assert one.score == pytest.approx(other.score, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("method", CLASSIFYING)
def test_every_method(method: str, device: torch.device) -> None:
    budget = {"budget": 12} if METHODS[method].budget else {}
    torch.manual_seed(1)
    model = OfModules().eval() if method == "lrp" else small(seed=1)
    same(model, images(2, 8), device, target=1, method=method, **budget)


@pytest.mark.parametrize("method", quick(ATTENDING, ["legrad"]))
def test_methods_of_attention(method: str, device: torch.device) -> None:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, num_classes=5, depth=2).eval()
    same(model, images(1, 64), device, target=1, method=method, tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "architecture", ["resnet18", "mobilenet_v3_small", "densenet121", "swin_t", "convnext_tiny"]
)
def test_architectures(architecture: str, device: torch.device) -> None:
    torch.manual_seed(0)
    model = torchvision.models.get_model(architecture, weights=None).eval()
    same(model, images(2, 64), device, target=7, method=["gradcam", "hirescam"], tolerance=1e-3)


@pytest.mark.parametrize("kind", ["class", "unit", "similarity"])
def test_targets(kind: str, device: torch.device) -> None:
    model, x = small(seed=1), images(2, 8)
    targets: dict[str, Target] = {
        "class": ClassTarget(2, minus=0, of="probability", against=True),
        "unit": UnitTarget("relu2", 3),
        "similarity": SimilarityTarget("relu2", embed(model, x[1:], "relu2")),
    }
    same(model, x[:1], device, target=targets[kind], layer="relu1", signed=True)


@pytest.mark.slow
def test_a_segmenter_with_a_mask(device: torch.device) -> None:
    mask = np.zeros((64, 64), bool)
    mask[:20, 30:] = True
    target = [ClassTarget(2, mask=mask), ClassTarget(1, box=(0, 0, 30, 40))]
    same(segmenter(), images(1, 64), device, target=target, layer="backbone.6", tolerance=1e-3)


@pytest.mark.slow
def test_a_detector(device: torch.device) -> None:
    model, x = detector(), images(1, 64)
    same(model, x, device, method="odam", tolerance=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(0)
    model = torchvision.models.squeezenet1_1(weights=None).eval()
    x = images(2, 128)  # 7 × 7 positions; of four, one exchange is a correlation of 0.8
    exact = explain(model, x, target=3)
    found = explain(on(device, model).to(dtype), x.to(device, dtype), target=3)
    for one, other in zip(exact, found, strict=True):
        assert other.map.dtype == np.float32
        agreement = spearman(one.map, other.map)
        assert agreement is not None
        assert agreement > 0.9


def test_maps_are_the_same_twice(device: torch.device) -> None:
    model = on(device, small(seed=1))
    x = images(4, 8).to(device)
    for method in ("gradcam", *RANDOM):
        once, again = (explain(model, x, target=1, method=method, budget=4) for _ in range(2))
        for one, other in zip(once, again, strict=True):
            np.testing.assert_allclose(one.map, other.map, rtol=1e-5, atol=1e-7)
