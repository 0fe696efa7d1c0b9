"""Methods of many forward passes: by hand, against brute force, and what they leave behind."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import timm
import torch
import torchvision
from pytorch_grad_cam import AblationCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from cam import ClassTarget, Question, Replay, explain, explain_in_steps
from cam.errors import LayerReused, MethodUnsuited, UnknownLayer
from cam.heatmap import minmax
from cam.methods.subject import Progress
from tests.cam.nets import hook_count, small
from tests.cam.test_targets import Identity

# Logits are the channels' means: 1, 2 and 0.
PHOTO = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 8], [0, 0]], [[0, 0], [0, 0]]]])


def test_scorecam_by_hand() -> None:
    # Each channel's mask shows one pixel: class 0 scores 1 through the first, 0 through the others.
    (found,) = explain(Identity(), PHOTO, target=0, method="scorecam", layer="layer")
    total = math.e + 2
    expected = np.array([[4 * math.e / total, 8 / total], [0, 0]])
    np.testing.assert_allclose(found.map, expected, rtol=1e-6)


def test_ablationcam_by_hand() -> None:
    # y = 1; without the first channel 0, without another still 1: weights 1, 0, 0.
    (found,) = explain(Identity(), PHOTO, target=0, method="ablationcam", layer="layer")
    np.testing.assert_allclose(found.map, [[4, 0], [0, 0]])


def test_ablationcam_of_a_negative_score_keeps_its_sign() -> None:
    # y = -1; without the first channel 0: weight (-1 - 0) / |-1|. Divided by y it would be 1.
    (found,) = explain(
        Identity(),
        PHOTO,
        target=ClassTarget(0, against=True),
        method="ablationcam",
        layer="layer",
        signed=True,
    )
    np.testing.assert_allclose(found.map, [[-4, 0], [0, 0]])


class Second(nn.Module):
    """The layer halves 4 × 4 pixels to 2 × 2; y is the second pixel of the first row."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.AvgPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        self.layer(x)
        y = x[:, 0, 0, 1]
        return torch.stack([y, 0 * y], 1)


def test_scorecam_resizes_its_masks_bilinearly_between_pixel_centres() -> None:
    # Enlarged twice, (1, 0) becomes (1, 3/4, 1/4, 0) and (0, 1) its reverse: the second pixel of
    # the first row is 3/4 through the first channel and 0 through the other. Aligned corners would
    # make it 2/3, a cubic 0.88.
    photo = torch.ones(1, 3, 4, 4)
    photo[0, 1, :2, :2], photo[0, 2, 2:, 2:] = 5, 5
    (found,) = explain(Second(), photo, target=0, method="scorecam", layer="layer")
    first = math.exp(0.75) / (math.exp(0.75) + 2)
    other = 1 / (math.exp(0.75) + 2)  # so does the flat channel, whose mask is 0
    expected = [[5 * first + 2 * other, 1], [1, first + 6 * other]]
    np.testing.assert_allclose(found.map, expected, rtol=1e-6)


class Spy(nn.Module):
    """Keeps the images that it sees. y is the mean of their right half."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Identity()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.clone())
        x = self.layer(x)
        y = x[..., x.shape[-1] // 2 :].mean(dim=(1, 2, 3))
        return torch.stack([y, 0 * y], 1)


def through_masks(method: str, photo: Tensor) -> tuple[Tensor, np.ndarray]:
    """What a method of masks shows the model, divided by the photo: (samples, channels, H, W); and
    its map, which the mean over the samples must weight."""
    model = Spy()
    (found,) = explain(model, photo, target=0, method=method, layer="layer")
    _, *samples = model.seen
    seen = torch.stack(samples)  # (samples, channels, colours, H, W)
    scores = seen[..., photo.shape[-1] // 2 :].mean(dim=(2, 3, 4))
    weights = scores.mean(0).softmax(0)
    expected = torch.einsum("k,khw->hw", weights, photo[0])
    np.testing.assert_allclose(found.map, expected, rtol=1e-4)
    masks = seen / photo
    torch.testing.assert_close(masks[:, :, 0], masks[:, :, 1])  # each colour through the same one
    return masks[:, :, 0], found.map


def test_sscam_adds_noise_of_two_to_each_of_ten_samples() -> None:
    photo = torch.ones(1, 2, 64, 64)
    photo[0, 0, :, 32:], photo[0, 1, :32] = 9, 9
    masks, _ = through_masks("sscam", photo)
    assert masks.shape == (10, 2, 64, 64)
    assert (masks.amin((2, 3)) == 0).all()
    torch.testing.assert_close(masks.amax((2, 3)), torch.ones(10, 2))
    # A mask is (A + δ) scaled. A is 1 in one half and 9 in the other, so whatever the scale, the
    # deviation within a half over the distance between the halves is σ / 8.
    noise = []
    for channel, (low, high) in enumerate(
        [(masks[:, 0, :, :32], masks[:, 0, :, 32:]), (masks[:, 1, 32:], masks[:, 1, :32])]
    ):
        distance = high.mean((1, 2)) - low.mean((1, 2))
        for half in (low, high):
            ratio = half.std((1, 2)) / distance
            assert float(ratio.mean()) == pytest.approx(2 / 8, rel=0.02)
            assert ratio.min() > 0.23, channel
            assert ratio.max() < 0.27, channel
            noise.append(half.reshape(10, -1) - half.mean((1, 2))[:, None])
    # Each sample of each channel has its own noise: of 2,048 pixels, none is like another.
    likeness = torch.corrcoef(torch.cat([torch.cat(noise[:2], 1), torch.cat(noise[2:], 1)]))
    assert (likeness - torch.eye(20)).abs().max() < 0.1


def test_iscam_by_hand() -> None:
    # Factors 0.1, 0.3, 0.6, 1, 1.5, 2.1, 2.8, 3.6, 4.5, 5.5 have the mean 2.2; class 0 scores 1
    # times each through the first channel, 0 through the others.
    (found,) = explain(Identity(), PHOTO, target=0, method="iscam", layer="layer")
    total = math.exp(2.2) + 2
    expected = np.array([[4 * math.exp(2.2) / total, 8 / total], [0, 0]])
    np.testing.assert_allclose(found.map, expected, rtol=1e-5)
    photo = torch.ones(1, 2, 2, 4)
    photo[0, 0, :, 2:], photo[0, 1, 0, 3] = 3, 2
    masks, _ = through_masks("iscam", photo)
    factors = torch.tensor([0.1, 0.3, 0.6, 1, 1.5, 2.1, 2.8, 3.6, 4.5, 5.5])
    whole = torch.tensor([[[0.0, 0, 1, 1]] * 2, [[0, 0, 0, 1], [0, 0, 0, 0]]])
    torch.testing.assert_close(masks, factors[:, None, None, None] * whole)


class Corner(nn.Module):
    """Sees the top left 4 × 4 of 16 × 16 pixels."""

    def forward(self, x: Tensor) -> Tensor:
        seen = x[:, :, :4, :4].mean(dim=(1, 2, 3))
        return torch.stack([seen, torch.zeros_like(seen)], 1)


def test_occlusion_by_hand() -> None:
    # Cells of 4 × 4, windows of 2 × 2 cells: only the first window hides the corner. A cell that
    # c windows cover gets 1 / c of the drop σ(3) - σ(0).
    photo = torch.full((1, 1, 16, 16), 3.0)
    (found,) = explain(Corner(), photo, target=0, method="occlusion", budget=9)
    drop = 1 / (1 + math.exp(-3)) - 0.5
    expected = np.zeros((4, 4))
    expected[:2, :2] = [[drop, drop / 2], [drop / 2, drop / 4]]
    np.testing.assert_allclose(found.map, np.kron(expected, np.ones((4, 4))), atol=1e-6)
    assert found.layer == "input"


def test_rise_finds_the_corner_and_is_unbiased() -> None:
    photo = torch.full((1, 1, 16, 16), 3.0)
    (found,) = explain(Corner(), photo, target=0, method="rise", budget=2000)
    assert found.map[:3, :3].mean() > found.map[8:, 8:].mean() + 0.05
    # Where nothing matters, each pixel gets the mean probability.
    (same,) = explain(Corner(), torch.zeros(1, 1, 16, 16), target=0, method="rise", budget=2000)
    np.testing.assert_allclose(same.map, 0.5, atol=0.06)
    (again,) = explain(Corner(), photo, target=0, method="rise", budget=2000)
    np.testing.assert_array_equal(again.map, found.map)


def resnet() -> nn.Module:
    model: nn.Module = torchvision.models.resnet18()
    return model


def densenet() -> nn.Module:
    """An in-place ReLU follows `features`, functions join its blocks."""
    model: nn.Module = torchvision.models.densenet121()
    return model


def vit() -> nn.Module:
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", depth=3, img_size=64)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    return model


@pytest.mark.parametrize(
    ("build", "layer", "channel"),
    [
        (resnet, "layer4", (slice(None), 7)),
        (resnet, "layer4.1.conv2", (slice(None), 7)),
        (resnet, "layer2.0", (slice(None), slice(0, 9))),
        # What follows changes the layer's output, or what is kept of the trunk, in place.
        (resnet, "layer4.1.bn2", (slice(None), 7)),
        (resnet, "layer4.0.bn2", (slice(None), 7)),
        (resnet, "layer4.0.downsample", (slice(None), 7)),
        (resnet, "layer3.0.downsample.0", (slice(None), 7)),
        (densenet, "features", (slice(None), 7)),
        (densenet, "features.denseblock3", (slice(None), 7)),
        (vit, "blocks.2.norm1", (slice(None), slice(1, None), 7)),
    ],
)
def test_a_replay_equals_the_whole_model(
    build: Callable[[], nn.Module], layer: str, channel: tuple[object, ...]
) -> None:
    torch.manual_seed(1)
    model = build().eval()
    image = torch.randn(1, 3, 64, 64)
    replay = Replay(model, layer, image)
    changed = replay.activation.repeat(3, *[1] * (replay.activation.ndim - 1))
    changed[1:][channel] = 0  # type: ignore[index]

    def ablate(module: nn.Module, args: object, output: Tensor) -> Tensor:
        output = output.clone()
        output[channel] = 0  # type: ignore[index]
        return output

    with torch.no_grad():
        whole = model(image)
        handle = model.get_submodule(layer).register_forward_hook(ablate)
        without = model(image)
        handle.remove()
    found = replay.output(changed)
    torch.testing.assert_close(found[:1], whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1:], without.expand(2, -1), rtol=1e-4, atol=1e-5)
    assert (whole - without).abs().max() > 1e-4
    assert hook_count(model) == 0
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_replay_that_fails_leaves_the_model_as_it_was() -> None:
    model = small()
    replay = Replay(model, "relu1", torch.randn(1, 3, 8, 8))
    with pytest.raises(RuntimeError):
        replay.output(torch.zeros(2, 9, 8, 8))
    assert not any("forward" in vars(module) for module in model.modules())
    with pytest.raises(UnknownLayer, match="no layer 'relu9'"):
        Replay(model, "relu9", torch.randn(1, 3, 8, 8))
    shared = nn.Sequential(relu := nn.ReLU(), relu, nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(LayerReused, match="runs more than once"):
        Replay(shared, "0", torch.randn(1, 3, 2, 2))
    assert hook_count(model) == hook_count(shared) == 0


def test_only_what_lies_behind_the_layer_runs_again() -> None:
    model = small()
    replay = Replay(model, "relu1", torch.randn(1, 3, 8, 8))
    calls: list[str] = []
    for name, module in model.named_children():
        original = module.forward

        def counted(*args: object, name: str = name, original: object = original) -> object:
            calls.append(name)
            return original(*args)  # type: ignore[operator]

        module.forward = counted
    replay.output(replay.activation)
    assert calls == ["conv2", "relu2", "dropout", "head"]


@pytest.mark.filterwarnings("ignore")
def test_ablationcam_equals_pytorch_grad_cams() -> None:
    """Where the layer's minimum is 0: elsewhere the peer sets a channel to minus ten million."""
    torch.manual_seed(0)
    model = resnet().eval()
    images = torch.randn(1, 3, 64, 64)
    for wanted in (1, 285):
        (ours,) = explain(model, images, target=wanted, method="ablationcam", layer="layer4")
        layers = [model.get_submodule("layer4")]
        with AblationCAM(model=model, target_layers=layers) as cam:
            a = cam.activations_and_grads(images).detach()
            del a
            activations = cam.activations_and_grads.activations[0].numpy()
            targets = [ClassifierOutputTarget(wanted)]
            weights = cam.get_cam_weights(images, layers[0], targets, activations, None)
        theirs = np.maximum(np.einsum("k,khw->hw", weights[0], activations[0]), 0)
        assert np.abs(minmax(ours.map) - minmax(theirs.astype(np.float32))).max() <= 1e-4
        assert np.ptp(ours.map) > 0


def test_steps_say_how_far_they_are_and_hold_nothing_between() -> None:
    model = small()
    question = Question((ClassTarget(0), ClassTarget(1)), "scorecam", ("conv1", "relu2"))
    steps = explain_in_steps(model, torch.randn(3, 8, 8), question, chunk=2)
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration as stop:
            answer = stop.value
            break
        assert hook_count(model) == 0
        assert all(p.grad is None for p in model.parameters())
    assert seen == [Progress(2, 4), Progress(4, 4), Progress(2, 5), Progress(4, 5), Progress(5, 5)]
    found = [(each.target.index, each.layer) for each in answer.explanations]
    assert found == [(0, "conv1"), (0, "relu2"), (1, "conv1"), (1, "relu2")]


def test_a_budget_takes_the_channels_that_vary_most() -> None:
    photo = torch.zeros(1, 3, 2, 2)
    photo[0, 0, 0, 0], photo[0, 2, 1, 1] = 4, 8
    (found,) = explain(Identity(), photo, target=0, method="ablationcam", layer="layer", budget=1)
    assert not found.map.any()  # the third channel alone was tried, and class 0 does not need it
    (found,) = explain(Identity(), photo, target=0, method="ablationcam", layer="layer", budget=2)
    np.testing.assert_allclose(found.map, [[4, 0], [0, 0]])


def test_rise_knows_nothing_against_a_class() -> None:
    with pytest.raises(MethodUnsuited, match="leave out against"):
        explain(
            Corner(),
            torch.zeros(1, 1, 16, 16),
            target=ClassTarget(0, against=True),
            method="rise",
            budget=10,
        )
