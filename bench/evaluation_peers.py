"""What other tools say of a map, for `bench/evaluation_parity.py` and `bench/evaluation_speed.py`.

Every function takes a model that returns logits, in eval mode on the CPU; preprocessed images
(n, 3, H, W), float32; a class for each image; and a map (H, W) for each image, of values 0 … 1 of
which no two are equal. All scores are of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import quantus
import torch
from captum.metrics import infidelity, sensitivity_max
from numpy.typing import NDArray
from pytorch_grad_cam.metrics.cam_mult_image import DropInConfidence, IncreaseInConfidence
from pytorch_grad_cam.metrics.road import (
    NoisyLinearImputer,
    ROADCombined,
    ROADLeastRelevantFirst,
    ROADMostRelevantFirst,
)
from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget
from quantus.functions.perturb_func import noisy_linear_imputation
from quantus.helpers import asserts
from scipy.ndimage import gaussian_filter
from scipy.stats import pearsonr
from torch import Tensor, nn
from torch.nn.functional import conv2d
from torchcam.metrics import ClassificationMetric, DeletionInsertionMetric

Map = NDArray[np.float32]
BLUR = 11
"""Height and width of the kernel of the RISE authors' blur."""


@torch.no_grad()
def probability(model: nn.Module, image: Tensor, index: int) -> float:
    """Return the probability of a class for one image, (1, 3, H, W)."""
    return float(model(image).softmax(1)[0, index])


# The code of RISE's authors, and of ADCC's, which are not packages, by hand


def blurred(images: Tensor) -> Tensor:
    """Return the images into which RISE's authors insert pixels."""
    point = np.zeros((BLUR, BLUR))
    point[BLUR // 2, BLUR // 2] = 1
    kernel = torch.zeros(3, 3, BLUR, BLUR)
    for channel in range(3):
        kernel[channel, channel] = torch.from_numpy(gaussian_filter(point, 5))
    return conv2d(images, kernel, padding=BLUR // 2)


def rise_area(scores: NDArray[np.float64]) -> float:
    """Return the area under a curve, of which all steps are as wide."""
    return float((scores.sum() - scores[0] / 2 - scores[-1] / 2) / (len(scores) - 1))


def rise(
    model: nn.Module, image: Tensor, index: int, values: Map, *, step: int, insert: bool
) -> float:
    """Return the area under the curve of insertion or deletion by steps of so many pixels."""
    removed = torch.zeros_like(image)
    start, finish = (blurred(image), image) if insert else (image.clone(), removed)
    order = np.argsort(values.ravel())[::-1].copy()
    scores = [probability(model, start, index)]
    for first in range(0, len(order), step):
        pixels = torch.from_numpy(order[first : first + step])
        start.flatten(2)[..., pixels] = finish.flatten(2)[..., pixels]
        scores.append(probability(model, start, index))
    return rise_area(np.array(scores))


def adcc(
    model: nn.Module, image: Tensor, index: int, values: Map, explain: Callable[[Tensor], Map]
) -> dict[str, float]:
    """Return what the authors' code computes, by cam's names. As in numpy, 1 / 0 is infinite.

    Args:
        explain: makes the map of an image (1, 3, H, W) for the same class, like `values`.
    """
    masked = image * torch.from_numpy(values)
    whole, seen = probability(model, image, index), probability(model, masked, index)
    drop = max(0.0, whole - seen) / whole
    maps = [each.ravel().astype(np.float64) for each in (values, explain(masked))]
    alike = (float(pearsonr(*maps).statistic) + 1) / 2
    covered = float(np.abs(values).sum(dtype=np.float64) / values.size)
    with np.errstate(divide="ignore"):
        parts = 1 / np.array([alike, 1 - covered, 1 - drop])
    return {
        "adcc": float(3 / parts.sum()),
        "coherency": alike,
        "complexity": covered,
        "confidence_drop": drop,
        "confidence_increase": float(seen > whole),
    }


# pytorch-grad-cam


@contextmanager
def noiseless() -> Iterator[None]:
    """Let its imputation add no noise."""
    first, *others = NoisyLinearImputer.__init__.__defaults__
    assert first == 0.01
    with patch.object(NoisyLinearImputer.__init__, "__defaults__", (0.0, *others)):
        yield


def grad_cam_road(
    model: nn.Module, image: Tensor, index: int, values: Map, *, percentages: Sequence[float]
) -> dict[str, float]:
    """Return the mean probabilities of both orders, and half their difference, by cam's names.

    Its percentile is the percentage of the pixels that stay.
    """
    asked = (image, values[None], [ClassifierOutputSoftmaxTarget(index)], model)
    kept = [100 - each for each in percentages]
    with noiseless():
        most, least = (
            float(np.mean([order(each)(*asked, return_diff=False)[0] for each in kept]))
            for order in (ROADMostRelevantFirst, ROADLeastRelevantFirst)
        )
        both = float(ROADCombined(kept)(*asked)[0])
    return {"road_morf": most, "road_lerf": least, "road": both}


def grad_cam_imputed(image: Tensor, removed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the image (3, H, W) with the removed pixels (H, W) imputed, without noise."""
    kept = torch.from_numpy(~removed).float()
    return NoisyLinearImputer(noise=0.0)(image[0], kept).numpy()


def grad_cam_masked(model: nn.Module, image: Tensor, index: int, values: Map) -> dict[str, float]:
    """Return its drop and its increase of confidence, by cam's names."""
    asked = (image, values[None], [ClassifierOutputSoftmaxTarget(index)], model)
    return {
        "confidence_drop": float(DropInConfidence()(*asked)[0]),
        "confidence_increase": float(IncreaseInConfidence()(*asked)[0]),
    }


def grad_cam_alike(values: Map, other: Map) -> dict[str, float]:
    """Return the coherency of two maps and the complexity of the first, by cam's names."""
    from pytorch_grad_cam.metrics.arcc import Complexity, batch_pearson_coherency

    return {
        "coherency": float((batch_pearson_coherency(other[None], values[None])[0] + 1) / 2),
        "complexity": float(Complexity()(values[None])[0]),
    }


def grad_cam_arcc(
    model: nn.Module, image: Tensor, index: int, values: Map, again: Callable[[Tensor], Map]
) -> float:
    """Return its ARCC without noise.

    Args:
        again: makes the map of a changed image (1, 3, H, W), (H, W).
    """
    from pytorch_grad_cam.metrics.arcc import ARCC

    def base_method(input_tensor: Tensor, targets: object) -> Map:
        return again(input_tensor)[None]

    with noiseless():
        metric = ARCC(base_method)
        return float(metric(image, values[None], [ClassifierOutputSoftmaxTarget(index)], model)[0])


def grad_cam_roads(
    model: nn.Module, images: Tensor, classes: Sequence[int], maps: Map
) -> NDArray[np.float32]:
    """Return ROAD of both orders of several images, as its tutorial shows it."""
    targets = [ClassifierOutputSoftmaxTarget(each) for each in classes]
    return ROADCombined()(images, maps, targets, model)


# Quantus


def quantus_curves(
    model: nn.Module,
    images: Tensor,
    classes: Sequence[int],
    maps: Map,
    *,
    step: int,
    insert: bool = False,
) -> NDArray[np.float64]:
    """Return the probabilities (n, steps) by its pixel flipping, bent to deletion and insertion.

    Its features are the values of the three channels, so a step has three times as many. That the
    number of pixels has to be a multiple of them is not asserted. Insertion, which it has not,
    starts from the blurred images and puts the images' own values in the place of the flipped ones.
    """
    originals = images.numpy().reshape(len(images), -1)

    def put_back(arr: Any, indices: Any, **_: Any) -> Any:
        found = arr.copy()
        rows = np.arange(len(found))[:, None]
        found[rows, indices] = originals[rows, indices]
        return found

    options = {"perturb_func": put_back} if insert else {"perturb_baseline": 0.0}
    metric = quantus.PixelFlipping(
        features_in_step=3 * step, normalise=False, disable_warnings=True, **options
    )
    starts = blurred(images) if insert else images
    with patch.object(asserts, "assert_features_in_step", lambda **_: None):
        return np.asarray(_quantus(metric, model, starts, classes, maps[:, None]))


def quantus_areas(
    model: nn.Module,
    images: Tensor,
    classes: Sequence[int],
    maps: Map,
    *,
    step: int,
    insert: bool = False,
) -> list[float]:
    """Return the areas under its curves, with the first point, which it leaves out."""
    curves = quantus_curves(model, images, classes, maps, step=step, insert=insert)
    starts = blurred(images) if insert else images
    areas = []
    for start, index, curve in zip(starts, classes, curves, strict=True):
        first = probability(model, start[None], index)
        areas.append(rise_area(np.array([first, *curve])))
    return areas


def quantus_road(
    model: nn.Module,
    images: Tensor,
    classes: Sequence[int],
    maps: Map,
    *,
    percentages: Sequence[float],
    noise: float = 0.01,
) -> dict[float, float]:
    """Return the share of images that are still recognised, for each percentage of the most
    relevant pixels.

    Its indices are those of all channels' values, of which its imputation knows only the first
    channel's. So the map is given to the first channel alone, the others have less than any of its
    values, and it is told the number of pixels.
    """
    metric = quantus.ROAD(
        percentages=list(percentages), noise=noise, normalise=False, disable_warnings=True
    )
    metric.a_size = maps[0].size
    least = np.full_like(maps, float(maps.min()) - 1)
    return _quantus(metric, model, images, classes, np.stack([maps, least, least], axis=1))


def quantus_road_probability(
    model: nn.Module, image: Tensor, index: int, values: Map, *, percentages: Sequence[float]
) -> float:
    """Return the mean probability without the most relevant pixels, which Quantus has at hand when
    it compares the predicted class; without noise."""
    recorded = Recorded(model).eval()
    quantus_road(recorded, image, [index], values[None], percentages=percentages, noise=0.0)
    return float(np.mean([float(each[0, index]) for each in recorded.seen]))


def quantus_imputed(image: Tensor, removed: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return the image (3, H, W) with the removed pixels (H, W) imputed, without noise."""
    indices = np.flatnonzero(removed)
    return noisy_linear_imputation(arr=image[0].numpy(), indices=indices, noise=0.0)


def _quantus(
    metric: Any, model: nn.Module, images: Tensor, classes: Sequence[int], maps: Map
) -> Any:
    """Ask one of its metrics about all images in one batch."""
    return metric(
        model=model,
        x_batch=images.numpy(),
        y_batch=np.asarray(classes),
        a_batch=maps,
        channel_first=True,
        softmax=True,
        device="cpu",
        batch_size=len(images),
    )


class Recorded(nn.Module):
    """A model whose probabilities are kept."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.seen: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        self.seen.append(logits.detach().softmax(1))
        return logits


# captum


def captum_infidelity(
    model: nn.Module,
    image: Tensor,
    index: int,
    values: Map,
    masks: NDArray[np.bool_],
    *,
    normalize: bool,
) -> float:
    """Return the infidelity of a map for masks (n, H, W), whose pixels become 0.

    The first channel alone has the map's heat: with that of three channels every sum would be three
    times as large.
    """
    attributions = torch.zeros_like(image)
    attributions[0, 0] = torch.from_numpy(values)
    blank = torch.from_numpy(masks)[:, None].expand(-1, 3, -1, -1)

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        assert len(inputs) == len(blank)
        return blank.float(), inputs * ~blank

    found = infidelity(
        lambda inputs: model(inputs).softmax(1)[:, index],
        perturb,
        image,
        attributions,
        n_perturb_samples=len(masks),
        normalize=normalize,
    )
    return float(found[0])


def captum_sensitivity(image: Tensor, explain: Callable[[Tensor], Map], noise: Tensor) -> float:
    """Return the sensitivity-max of a map for given noise (n, 3, H, W).

    Args:
        explain: makes the map of an image (1, 3, H, W), for the same class.
    """

    def maps(inputs: Any) -> Any:
        # It passes a tuple first, and then tensors, and wants the same in return.
        images = inputs[0] if isinstance(inputs, tuple) else inputs
        with torch.enable_grad():
            found = [torch.from_numpy(explain(each[None].clone())) for each in images]
        stacked = torch.stack(found)[:, None]
        return (stacked,) if isinstance(inputs, tuple) else stacked

    found = sensitivity_max(
        maps,
        image,
        perturb_func=lambda inputs: inputs + noise,
        n_perturb_samples=len(noise),
        max_examples_per_batch=len(noise),
    )
    return float(found[0])


# torchcam


class Given:
    """In the place of an extractor: it gives maps (n, H, W) that are known already."""

    def __init__(self, model: nn.Module, maps: Map) -> None:
        self.model = model
        self.maps = torch.from_numpy(maps)

    def __call__(self, class_idx: Any = None, scores: Any = None, **_: Any) -> list[Tensor]:
        return [self.maps]

    def fuse_cams(self, cams: list[Tensor]) -> Tensor:
        return cams[0]

    @contextmanager
    def _hooks_off(self) -> Iterator[None]:
        yield


def torchcam_masked(model: nn.Module, image: Tensor, index: int, values: Map) -> dict[str, float]:
    """Return its drop and its increase of confidence, by cam's names."""
    metric = ClassificationMetric(Given(model, values[None]), partial(torch.softmax, dim=-1))
    metric.update(image, class_idx=index)
    found = metric.summary()
    return {
        "confidence_drop": float(found["avg_drop"]),
        "confidence_increase": float(found["conf_increase"]),
    }


def torchcam_areas(
    model: nn.Module,
    images: Tensor,
    classes: Sequence[int],
    maps: Map,
    *,
    steps: int,
    blur: bool = False,
) -> dict[str, float]:
    """Return the areas of insertion and deletion, by cam's names, as means over the images. Both
    have the same substrate, which is zero, or the blurred image."""
    metric = DeletionInsertionMetric(
        Given(model, maps),
        partial(torch.softmax, dim=-1),
        steps=steps,
        baseline=blurred if blur else None,
    )
    metric.update(images, class_idx=list(classes))
    found = metric.summary()
    return {
        "deletion": float(found["deletion_auc"]),
        "insertion": float(found["insertion_auc"]),
    }
