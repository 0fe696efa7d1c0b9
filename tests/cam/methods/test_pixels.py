"""Gradients at the photo: by hand, against autograd, and what they leave behind."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torchvision
from pytorch_grad_cam import GuidedBackpropReLUModel
from torch import Tensor, nn

from cam import ClassTarget, explain
from cam.drawing.heatmap import minmax
from cam.drawing.placement import resize
from cam.errors import MethodUnsuited
from cam.methods.background import declare_background
from cam.passes.batch_dependence import conduct_of
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, hook_count, images, means, scored, seen_by


def quadratic() -> Net:
    """Two logits: the mean of red minus twice green, squared pixel by pixel; and its negative."""
    return scored(lambda x: ((x[:, 0] - 2 * x[:, 1]) ** 2).mean((1, 2)), other=-1)


# Red minus twice green: 1, -4, 0 and 0.
PHOTO = torch.tensor([[[[1.0, 0], [0, 0]], [[0, 2], [0, 0]], [[9, 9], [9, 9]]]])


def test_the_gradient_by_hand() -> None:
    # ∂y/∂red = 2 d / 4 and ∂y/∂green = -4 d / 4 with d = 1 and -4: the larger is |d|.
    for index in (0, 1):
        (found,) = explain(quadratic(), PHOTO, target=index, method="gradient")
        np.testing.assert_allclose(found.map, [[1, 4], [0, 0]])
        assert found.layer == "input"


def test_smoothgrad_of_a_quadratic_is_its_gradient() -> None:
    """The gradient is linear in the photo, so noise averages out; the rest is its standard
    error, σ √5 / √n with σ = 0.15 · 9."""
    (found,) = explain(quadratic(), PHOTO, target=0, method="smoothgrad", budget=4000)
    np.testing.assert_allclose(found.map, [[1, 4], [0, 0]], atol=5 * 0.15 * 9 * 5**0.5 / 4000**0.5)
    (again,) = explain(quadratic(), PHOTO, target=0, method="smoothgrad", budget=4000)
    np.testing.assert_array_equal(found.map, again.map)


def slopes(images: Tensor) -> Tensor:
    """∂y/∂X of the first logit by hand: d / 2 · (1, -2, 0) with d = red - 2 green."""
    d = images[:, 0] - 2 * images[:, 1]
    return d[:, None] / 2 * torch.tensor([1.0, -2, 0])[:, None, None]


def test_smoothgrads_noise_and_mean() -> None:
    model = quadratic()
    seen = seen_by(model)
    photo = torch.zeros(1, 3, 40, 40)
    photo[0, 0], photo[0, 1, 0, 0] = 3, -1  # a range of 4: σ = 0.6
    conduct_of(model, photo)
    seen.clear()
    (found,) = explain(model, photo, target=1, method="smoothgrad", budget=20, activation="softmax")
    noisy = torch.cat(seen[1:])
    noise = noisy - photo
    assert noise.shape == (20, 3, 40, 40)
    assert float(noise.std()) == pytest.approx(0.6, rel=0.02)
    assert float(noise.mean()) == pytest.approx(0, abs=0.01)
    likeness = torch.corrcoef(noise.reshape(60, -1))  # of each copy's each colour
    assert (likeness - torch.eye(60)).abs().max() < 0.12
    expected = (slopes(noisy) / 400).mean(0).abs().amax(0)  # 40 × 40 pixels, not 2 × 2
    np.testing.assert_allclose(found.map, expected, rtol=1e-4, atol=1e-8)


def test_integrated_gradients_go_in_equal_steps_from_gray_to_the_photo() -> None:
    model = quadratic()
    seen = seen_by(model)
    conduct_of(model, PHOTO)
    seen.clear()
    explain(model, PHOTO, target=0, method="integratedgradients", budget=4, activation="softmax")
    shares = torch.tensor([1 / 8, 3 / 8, 5 / 8, 7 / 8])[:, None, None, None]
    whole, steps, ends = seen
    torch.testing.assert_close(whole, PHOTO)
    torch.testing.assert_close(steps, shares * PHOTO)
    torch.testing.assert_close(ends, torch.cat([PHOTO, torch.zeros_like(PHOTO)]))


def test_several_targets_have_each_its_own_gradients() -> None:
    torch.manual_seed(0)
    model, x = small(), torch.randn(1, 3, 8, 8)
    asked = [ClassTarget(1), ClassTarget(2, minus=0), ClassTarget(0)]
    for method in (
        "gradient",
        "smoothgrad",
        "integratedgradients",
        "expectedgradients",
        "guidedgradcam",
        "fullgrad",
    ):
        together = explain(model, x, target=asked, method=method, layer="relu1", budget=6)
        for target, found in zip(asked, together, strict=True):
            (alone,) = explain(model, x, target=target, method=method, layer="relu1", budget=6)
            scale = float(alone.map.max())
            assert scale > 0
            np.testing.assert_allclose(found.map, alone.map, atol=2e-3 * scale, err_msg=method)
            if alone.completeness:
                assert found.completeness is not None
                assert found.completeness.attributed == pytest.approx(
                    alone.completeness.attributed, rel=1e-3
                )
                assert found.completeness.difference == pytest.approx(
                    alone.completeness.difference, rel=1e-3
                )


def test_it_equals_autograd_and_leaves_the_model_alone() -> None:
    model = small(seed=5, inplace=True)
    images = torch.randn(2, 3, 8, 8)
    probe = images.clone().requires_grad_()
    logits = model(probe)
    (logits[:, 2] - logits[:, 0]).sum().backward()
    assert probe.grad is not None
    expected = probe.grad.abs().amax(1).numpy()
    for parameter in model.parameters():
        parameter.grad = None
    found = explain(model, images, target=ClassTarget(2, minus=0), method="gradient")
    for explanation, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(explanation.map, wanted, rtol=1e-4, atol=1e-7)
    assert hook_count(model) == 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_integrated_gradients_by_hand() -> None:
    """∫ 3(αx)² dα · x = x³: each pixel gets its own share of the mean; the midpoint rule with n
    steps misses 1/(4n²) of a parabola's integral."""
    photo = torch.tensor([[[[2.0, -1], [0, 3]]]])
    shares = np.array([[8, -1], [0, 27]]) / 4
    model = scored(lambda x: (x**3).mean((1, 2, 3)))
    for steps in (5, 50):
        (found,) = explain(
            model, photo, target=0, method="integratedgradients", budget=steps, signed=True
        )
        off = 1 - 1 / (4 * steps**2)
        np.testing.assert_allclose(found.map, shares * off, rtol=1e-5)
        assert found.completeness is not None
        assert found.completeness.difference == pytest.approx(8.5)
        assert found.completeness.attributed == pytest.approx(8.5 * off, rel=1e-5)
    (positive,) = explain(model, photo, target=0, method="integratedgradients")
    assert positive.map[0, 1] == 0


@pytest.mark.slow
def test_integrated_gradients_are_complete_on_a_network() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    (found,) = explain(
        model, torch.randn(1, 3, 64, 64), target=3, method="integratedgradients", budget=100
    )
    assert found.completeness is not None
    assert abs(found.completeness.difference) > 0.05
    assert found.completeness.attributed == pytest.approx(found.completeness.difference, rel=0.02)


def gated(kind: str) -> Net:
    """Maps relu(x) and relu(-x); y = mean of the first minus mean of the second."""

    def score(x: Tensor, relu: nn.Module) -> Tensor:
        rectify = {
            "a function": torch.relu,
            "a method": Tensor.relu_,
            "up to 6": nn.functional.relu6,
        }.get(kind, relu)
        found = means(rectify(torch.cat([x, -x], 1)))
        return found[:, 0] - found[:, 1]

    return scored(score, other=-1, relu=nn.ReLU(inplace=kind == "in place"))


@pytest.mark.parametrize("kind", ["a module", "in place", "a function", "a method", "up to 6"])
def test_guided_backprop_by_hand(kind: str) -> None:
    """y is the mean of x; guided, the evidence that comes through the second map, whose gradient
    is -¼, is left out: only positive x count."""
    photo = torch.tensor([[[[2.0, -1], [-3, 4]]]])
    model = gated(kind)
    (plain,) = explain(model, photo, target=0, method="gradient")
    np.testing.assert_allclose(plain.map, np.full((2, 2), 0.25))
    (guided,) = explain(model, photo, target=0, method="guidedbackprop")
    np.testing.assert_allclose(guided.map, [[0.25, 0], [0, 0.25]])
    (after,) = explain(model, photo, target=0, method="gradient")
    np.testing.assert_array_equal(after.map, plain.map)  # nothing is left behind
    assert hook_count(model) == 0


@pytest.mark.slow
def test_guided_backprop_of_a_batch_is_each_images_own() -> None:
    """pytorch-grad-cam #530: only the first image came out right."""
    torch.manual_seed(0)
    model = torchvision.models.vgg11().eval()
    x = torch.randn(3, 3, 64, 64)
    together = explain(model, x, method="guidedbackprop")
    for row, found in enumerate(together):
        (alone,) = explain(model, x[row : row + 1], method="guidedbackprop")
        np.testing.assert_allclose(found.map, alone.map, atol=1e-6)
        assert np.ptp(found.map) > 0
    assert len({found.map.tobytes() for found in together}) == 3


@pytest.mark.filterwarnings("ignore")
def test_guided_backprop_equals_pytorch_grad_cams() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    x = torch.randn(1, 3, 64, 64)
    (ours,) = explain(model, x, target=5, method="guidedbackprop")
    peer = GuidedBackpropReLUModel(model=copy.deepcopy(model), device=torch.device("cpu"))
    theirs = np.abs(peer(x.clone(), target_category=5)).max(axis=-1)
    np.testing.assert_allclose(minmax(ours.map), minmax(theirs.astype(np.float32)), atol=1e-4)


def test_guided_grad_cam_is_the_product() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    x = torch.randn(1, 3, 64, 64)
    (product,) = explain(model, x, target=5, method="guidedgradcam", layer="layer3")
    (fine,) = explain(model, x, target=5, method="guidedbackprop")
    (coarse,) = explain(model, x, target=5, method="gradcam", layer="layer3")
    expected = fine.map * resize(coarse.map, 64, 64)
    np.testing.assert_allclose(product.map, expected, atol=1e-5 * float(expected.max()))
    assert product.layer == "layer3"
    assert product.map.max() > 0


def test_a_model_without_rectifiers_is_refused() -> None:
    for method in ("guidedbackprop", "guidedgradcam"):
        with pytest.raises(MethodUnsuited, match="it needs rectifiers"):
            explain(nn.Sequential(nn.Conv2d(3, 2, 1), nn.GELU(), Net(means)), PHOTO, method=method)


def weighed() -> Net:
    """y = Σ_c w_c X_c over all pixels, and its negative."""
    weights = torch.tensor([1.0, 2, -1])[:, None, None]
    return scored(lambda x: (x * weights).sum((1, 2, 3)), other=-1)


def test_integrated_gradients_of_a_linear_model_by_hand() -> None:
    """∂y/∂X_c = w_c everywhere: the map is Σ_c w_c X_c at each pixel, not its mean over c."""
    photo = torch.tensor([[[[1.0, 2]], [[3, 0]], [[1, 4]]]])
    (found,) = explain(weighed(), photo, target=0, method="integratedgradients", budget=3)
    np.testing.assert_allclose(found.map, [[1 + 6 - 1, 0]], rtol=1e-6)  # and 2 + 0 - 4, rectified
    assert found.completeness is not None
    assert found.completeness.attributed == pytest.approx(6 - 2)


def test_expected_gradients_of_a_linear_model_by_hand() -> None:
    """w_c (X_c less the mean of the background), whatever the draws of α are, where each image of
    the background is drawn equally often: here twice. The mean of the background is 1 everywhere
    but for the second pixel of the first colour, where it is 4."""
    photo = torch.tensor([[[[1.0, 2]], [[3, 0]], [[1, 4]]]])
    background = torch.ones(2, 3, 1, 2)
    background[1, 0, 0, 1] = 7
    model = weighed()
    declare_background(model, background)
    (found,) = explain(model, photo, target=0, method="expectedgradients", budget=4, signed=True)
    # 1 (1 - 1) + 2 (3 - 1) - (1 - 1) and 1 (2 - 4) + 2 (0 - 1) - (4 - 1)
    np.testing.assert_allclose(found.map, [[4, -7]], rtol=1e-6)
    assert found.completeness is not None
    # y is 7 - 2 + ... = 1 + 6 - 1 + 2 + 0 - 4 of the photo, and 4 + 3 of the mean background.
    assert found.completeness.difference == pytest.approx(4 - 7)
    assert found.completeness.attributed == pytest.approx(4 - 7)
    (positive,) = explain(model, photo, target=0, method="expectedgradients", budget=4)
    np.testing.assert_allclose(positive.map, [[4, 0]], rtol=1e-6)
    # One pass draws one of the two: the first map below, or the second.
    (one,) = explain(model, photo, target=0, method="expectedgradients", budget=1, signed=True)
    assert one.map[0, 1] == pytest.approx(-4) or one.map[0, 1] == pytest.approx(-10)
    assert one.completeness is not None
    assert one.completeness.attributed == pytest.approx(one.completeness.difference)


def test_expected_gradients_draw_each_part_of_the_way_and_each_background_equally_often() -> None:
    """The model sees X' + α (X - X'): with X = 1 and X' = 0 or 10, the pixels tell both."""
    model, photo = quadratic(), torch.ones(1, 3, 2, 2)
    passed = seen_by(model)
    declare_background(model, torch.stack([0 * photo[0], 0 * photo[0] + 10]))
    conduct_of(model, photo)
    passed.clear()
    explain(model, photo, target=0, method="expectedgradients", budget=400, activation="softmax")
    seen = torch.cat(passed[1:])[:400, 0, 0, 0]
    near, far = seen[seen <= 1], (10 - seen[seen > 1]) / 9
    assert len(near) == len(far) == 200
    shares = torch.cat([near, far]).sort().values
    parts = torch.arange(400) / 400
    assert (shares >= parts - 1e-6).all()
    assert (shares <= parts + 1 / 400 + 1e-6).all()
    for some in (near, far):  # the order of the parts does not follow that of the background
        assert float(some.mean()) == pytest.approx(0.5, abs=0.05)
        assert abs(float(torch.corrcoef(torch.stack([some, torch.arange(200.0)]))[0, 1])) < 0.2


def test_expected_gradients_equal_a_statement_of_their_own() -> None:
    """Image by image, with autograd alone, at the points that the model was given."""
    torch.manual_seed(0)
    inner = small(seed=7)
    photo, background = torch.randn(1, 3, 8, 8), torch.randn(3, 3, 8, 8)
    seen: list[Tensor] = []
    handle = inner.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    declare_background(inner, background)
    conduct_of(inner, photo)
    seen.clear()
    (found,) = explain(
        inner,
        photo,
        target=2,
        method="expectedgradients",
        budget=30,
        signed=True,
        activation="softmax",
    )
    handle.remove()
    expected = torch.zeros(3, 8, 8)
    for point in torch.cat(seen[1:])[:30]:
        # The point lies between the photo and one of the background.
        gaps = [
            (
                float(
                    ((point - other) * (photo[0] - other)).sum() / (photo[0] - other).square().sum()
                )
            )
            for other in background
        ]
        offs = [
            float((other + gap * (photo[0] - other) - point).abs().max())
            for other, gap in zip(background, gaps, strict=True)
        ]
        other = background[int(np.argmin(offs))]
        assert min(offs) < 1e-5
        probe = point[None].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(inner(probe)[0, 2], probe)
        expected += (photo[0] - other) * gradient[0] / 30
    np.testing.assert_allclose(found.map, expected.sum(0), rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        difference = float(inner(photo)[0, 2] - inner(background)[:, 2].mean())
    assert found.completeness is not None
    assert found.completeness.difference == pytest.approx(difference, rel=1e-4)
    assert found.completeness.attributed == pytest.approx(float(expected.sum()), rel=1e-4)


def test_expected_gradients_add_up_as_the_draws_become_many() -> None:
    errors = []
    for budget in (16, 1600):
        (found,) = explain(
            small(seed=7),
            images(1),
            target=2,
            method="expectedgradients",
            budget=budget,
            signed=True,
        )
        assert found.completeness is not None
        gap = found.completeness.attributed - found.completeness.difference
        errors.append(abs(gap) / float(np.abs(found.map).sum()))
    assert errors[1] < 0.005 < errors[0], errors
