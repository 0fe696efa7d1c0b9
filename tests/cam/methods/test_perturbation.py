"""Methods of many forward passes: by hand, against brute force, and what they leave behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from pytorch_grad_cam import AblationCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

from cam import (
    METHODS,
    ClassTarget,
    ExplainedImage,
    Explanation,
    Question,
    Replay,
    explain,
    explain_in_steps,
)
from cam.drawing.heatmap import minmax
from cam.drawing.placement import resize
from cam.errors import LayerReused, MethodUnsuited, NoGradientPath, UnknownLayer
from cam.methods.perturbation import CHANNELS
from cam.outputs.reading import Reading
from cam.passes.stepwise import finish
from cam.progress import Passes, Progress
from tests.zoo.by_hand import identity
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, at_layer, hook_count, means, scored, seen_by

# Logits are the channels' means: 1, 2 and 0.
PHOTO = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 8], [0, 0]], [[0, 0], [0, 0]]]])


def test_scorecam_by_hand() -> None:
    # Each channel's mask shows one pixel: class 0 scores 1 through the first, 0 through the others.
    (found,) = explain(identity(), PHOTO, target=0, method="scorecam", layer="layer")
    total = math.e + 2
    expected = np.array([[4 * math.e / total, 8 / total], [0, 0]])
    np.testing.assert_allclose(found.map, expected, rtol=1e-6)


def test_ablationcam_by_hand() -> None:
    # y = 1; without the first channel 0, without another still 1: weights 1, 0, 0.
    (found,) = explain(identity(), PHOTO, target=0, method="ablationcam", layer="layer")
    np.testing.assert_allclose(found.map, [[4, 0], [0, 0]])
    # y = 2; without the second channel 0: weight 2 / 2.
    (found,) = explain(identity(), PHOTO, target=1, method="ablationcam", layer="layer")
    np.testing.assert_allclose(found.map, [[0, 8], [0, 0]])


def test_ablationcam_of_a_negative_score_keeps_its_sign() -> None:
    # y = -1; without the first channel 0: weight (-1 - 0) / |-1|. Divided by y it would be 1.
    (found,) = explain(
        identity(),
        PHOTO,
        target=ClassTarget(0, against=True),
        method="ablationcam",
        layer="layer",
        signed=True,
    )
    np.testing.assert_allclose(found.map, [[-4, 0], [0, 0]])


def test_ablationcam_of_a_score_of_zero_divides_by_one() -> None:
    # y = 1 - 1 = 0; without the first channel -1, without the second 1.
    photo = torch.tensor([[[[4.0, 0], [0, 0]], [[0, 4], [0, 0]], [[0, 0], [0, 0]]]])
    (found,) = explain(
        identity(),
        photo,
        target=ClassTarget(0, minus=1),
        method="ablationcam",
        layer="layer",
        signed=True,
    )
    np.testing.assert_allclose(found.map, [[4, -4], [0, 0]])


def squares() -> Net:
    """Logits are the sums of the channels' squares plus a bias: there is no linear head."""
    return at_layer(lambda a: a.square().sum((2, 3)) + torch.tensor([5.0, -7.0, 0.0]))


def test_reciprocam_by_hand() -> None:
    # With one position alone class 0 scores 16 + 5 or 0 + 5; with none of them 5.
    (found,) = explain(squares(), PHOTO, target=0, method="reciprocam", layer="layer")
    np.testing.assert_allclose(found.map, [[16, 0], [0, 0]])
    (found,) = explain(
        squares(),
        PHOTO,
        target=ClassTarget(1, minus=0),
        method="reciprocam",
        layer="layer",
        signed=True,
    )
    np.testing.assert_allclose(found.map, [[-16, 64], [0, 0]])


def pooled_conv(ending: Callable[[Tensor], Tensor] = lambda logits: logits) -> Net:
    """A convolution, the mean over its positions, a linear head, and what becomes of its logits."""
    torch.manual_seed(0)
    return Net(
        lambda x, layer, head: ending(head(means(layer(x)))),
        layer=nn.Conv2d(3, 8, 3),
        head=nn.Linear(8, 3),
    ).eval()


TARGETS = [ClassTarget(1), ClassTarget(0, minus=2), ClassTarget(2, against=True)]


@pytest.mark.parametrize("target", TARGETS)
def test_reciprocam_behind_a_linear_head_is_cam(target: ClassTarget) -> None:
    photo = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    model = pooled_conv()
    hidden = pooled_conv(lambda logits: 2 * logits + logits.abs().clamp(max=0))

    def made(net: Net, method: str) -> tuple[Any, int]:
        seen = seen_by(net)
        (found,) = explain(net, photo, target=target, method=method, layer="layer", signed=True)
        return found.map, len(seen)

    (exact, few), (found, same), (slow, many) = (
        made(model, "cam"),
        made(model, "reciprocam"),
        made(hidden, "reciprocam"),
    )
    np.testing.assert_allclose(found, exact / exact.size, rtol=1e-5)
    assert same <= few  # no pass is made
    # Where the head is not known to be linear, each position takes one, for the same map.
    np.testing.assert_allclose(slow, 2 * found, atol=1e-6)
    assert many > few


def test_reciprocam_of_a_small_budget_asks_for_the_strongest_positions() -> None:
    photo = PHOTO.clone()
    photo[0, 0, 1] = torch.tensor([1.0, 2.0])
    (whole,) = explain(squares(), photo, target=0, method="reciprocam", layer="layer")
    np.testing.assert_allclose(whole.map, [[16, 0], [1, 4]])
    assert whole.passes == Passes(4, 4, False, "positions with the greatest activations")
    (few,) = whole.warnings
    assert few.startswith("2 × 2 positions: ")
    (some,) = explain(squares(), photo, target=0, method="reciprocam", layer="layer", budget=3)
    np.testing.assert_allclose(some.map, [[16, 0], [0, 4]])
    assert "3 of the 4 passes" in some.warnings[-1]
    assert "for the positions with the greatest activations" in some.warnings[-1]


def test_opticam_by_hand() -> None:
    """Adam, the softmax and the mask written out with numbers: three steps from equal weights."""
    (found,) = explain(identity(), PHOTO, target=0, method="opticam", layer="layer", budget=4)
    channels = PHOTO[0].double()

    def mask_of(weights: Tensor) -> tuple[Tensor, Tensor]:
        shares = weights.exp() / weights.exp().sum()
        small_ = (shares[:, None, None] * channels).sum(0)
        return small_, (small_ - small_.min()) / (small_.max() - small_.min())

    weights, first, second = (torch.zeros(3, dtype=torch.double) for _ in range(3))
    best = -math.inf
    expected = torch.zeros(2, 2)
    for step in range(1, 5):
        leaf = weights.clone().requires_grad_()
        small_, mask = mask_of(leaf)
        score = (channels[0] * mask).mean()
        (slope,) = torch.autograd.grad(-score, leaf)
        if float(score.detach()) > best:
            best, expected = float(score.detach()), small_.detach()
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        root = (second / (1 - 0.999**step)).sqrt() + 1e-8
        weights = weights - 0.1 * (first / (1 - 0.9**step)) / root
    np.testing.assert_allclose(found.map, expected, rtol=1e-4)


def test_opticam_needs_a_gradient() -> None:
    model = Net(lambda x, layer: means(layer(x.detach())), layer=nn.Identity())

    with pytest.raises(NoGradientPath, match="no gradient of the target reaches the image"):
        explain(model, PHOTO, target=0, method="opticam", layer="layer", activation="softmax")


def test_opticam_stops_when_the_time_is_up() -> None:
    question = Question((ClassTarget(0), ClassTarget(1)), "opticam", ("layer",))
    reading = Reading(activation="softmax")
    steps = explain_in_steps(identity(), PHOTO[0], question, reading=reading, stop=lambda: True)
    answer = finish(steps)
    assert isinstance(answer, ExplainedImage)
    assert [each.passes for each in answer.explanations] == [Passes(2, 200, True)] * 2
    assert "the time ran out" in answer.explanations[0].warnings[-1]


@pytest.mark.slow
def test_opticam_raises_the_score_of_what_is_seen() -> None:
    torch.manual_seed(0)
    model, photo = resnet().eval(), torch.rand(1, 3, 64, 64)
    scores = []
    for budget in (1, 15):
        (found,) = explain(model, photo, target=7, method="opticam", layer="layer3", budget=budget)
        mask = torch.from_numpy(minmax(resize(found.map, 64, 64)))
        with torch.no_grad():
            scores.append(float(model(photo * mask)[0, 7]))
    assert scores[1] > scores[0]
    assert not any(parameter.grad is not None for parameter in model.parameters())


def corner() -> Net:
    """Sees the top left 4 × 4 of 16 × 16 pixels."""
    return scored(lambda x: x[:, :, :4, :4].mean((1, 2, 3)))


def test_occlusion_by_hand() -> None:
    # Cells of 4 × 4, windows of 2 × 2 cells: only the first window hides the corner. A cell that
    # c windows cover gets 1 / c of the drop σ(3) - σ(0).
    photo = torch.full((1, 1, 16, 16), 3.0)
    (found,) = explain(corner(), photo, target=0, method="occlusion", budget=9)
    drop = 1 / (1 + math.exp(-3)) - 0.5
    expected = np.zeros((4, 4))
    expected[:2, :2] = [[drop, drop / 2], [drop / 2, drop / 4]]
    np.testing.assert_allclose(found.map, np.kron(expected, np.ones((4, 4))), atol=1e-6)
    assert found.layer == "input"


def test_rise_finds_the_corner_and_is_unbiased() -> None:
    photo = torch.full((1, 1, 16, 16), 3.0)
    (found,) = explain(corner(), photo, target=0, method="rise", budget=2000)
    assert found.map[:3, :3].mean() > found.map[8:, 8:].mean() + 0.05
    # Where nothing matters, each pixel gets the mean probability.
    (same,) = explain(corner(), torch.zeros(1, 1, 16, 16), target=0, method="rise", budget=2000)
    np.testing.assert_allclose(same.map, 0.5, atol=0.06)
    (again,) = explain(corner(), photo, target=0, method="rise", budget=2000)
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
        pytest.param(densenet, "features", (slice(None), 7), marks=pytest.mark.slow),
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


def test_ablationcam_runs_the_trunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    ran: list[nn.Module] = []
    original = nn.Conv2d.forward

    def counted(module: nn.Conv2d, image: Tensor) -> Tensor:
        ran.append(module)
        return original(module, image)

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    question = Question((ClassTarget(0),), "ablationcam", ("relu1",))
    steps = partial(explain_in_steps, model, torch.randn(3, 8, 8), question)
    reading = Reading(activation="softmax")
    finish(steps(reading=reading))  # finds where the layer lies, once a model
    ran.clear()
    answer = finish(steps(reading=reading))
    assert isinstance(answer, ExplainedImage)
    assert ran.count(model.get_submodule("conv1")) == 1
    # The first pass, the replay of the layer as it is, and one for all its channels.
    assert ran.count(model.get_submodule("conv2")) == 3


@pytest.mark.slow
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
    (found,) = explain(identity(), photo, target=0, method="ablationcam", layer="layer", budget=1)
    assert not found.map.any()  # the third channel alone was tried, and class 0 does not need it
    (found,) = explain(identity(), photo, target=0, method="ablationcam", layer="layer", budget=2)
    np.testing.assert_allclose(found.map, [[4, 0], [0, 0]])


def test_rise_knows_nothing_against_a_class() -> None:
    with pytest.raises(MethodUnsuited, match="leave out against"):
        explain(
            corner(),
            torch.zeros(1, 1, 16, 16),
            target=ClassTarget(0, against=True),
            method="rise",
            budget=10,
        )


def stopped(method: str, after: int = 1, **asked: Any) -> Explanation:
    """What is there when the time is up after so many chunks of one pass."""
    looks = itertools.count(1)
    layers = () if METHODS[method].at == "input" else ("layer",)
    question = Question((ClassTarget(0),), method, layers, **asked)
    steps = explain_in_steps(
        identity(), PHOTO[0], question, chunk=1, stop=lambda: next(looks) >= after
    )
    answer = finish(steps)
    assert isinstance(answer, ExplainedImage)
    (found,) = answer.explanations
    return found


@pytest.mark.parametrize(("method", "passes"), [("scorecam", 1), ("sscam", 10), ("iscam", 10)])
def test_when_the_time_is_up_the_strongest_channels_make_the_map(method: str, passes: int) -> None:
    # The second channel varies most; alone it has the softmax's whole weight.
    found = stopped(method)
    np.testing.assert_allclose(found.map, [[0, 8], [0, 0]], rtol=1e-6)
    assert found.passes == Passes(passes, 3 * passes, True, CHANNELS)
    assert found.warnings[-1].startswith(f"{passes} of the {3 * passes} passes that the method")
    assert "the time ran out" in found.warnings[-1]


def test_when_the_time_is_up_ablation_has_seen_two_of_three_channels() -> None:
    # Without the second channel class 0 scores 1 still, without the first 0: weights 0 and 1.
    found = stopped("ablationcam", after=2)
    np.testing.assert_allclose(found.map, [[4, 0], [0, 0]])
    assert found.passes == Passes(2, 3, True, CHANNELS)


def test_when_the_time_is_up_the_mean_is_over_the_masks_so_far() -> None:
    """It is what that budget makes."""
    found, expected = stopped("rise", after=5), stopped("rise", after=99, budget=5)
    np.testing.assert_allclose(found.map, expected.map, rtol=1e-6)
    assert found.passes == Passes(5, 1000, stopped=True)
    assert expected.passes == Passes(5, 5)
    assert not expected.warnings


def test_a_budget_for_fewer_channels_is_told() -> None:
    (found,) = explain(identity(), PHOTO, target=0, method="sscam", layer="layer", budget=20)
    assert found.passes == Passes(20, 30, chosen=CHANNELS)
    assert "20 of the 30 passes" in found.warnings[-1]
    assert "a larger budget allows more" in found.warnings[-1]
    (whole,) = explain(identity(), PHOTO, target=0, method="sscam", layer="layer")
    assert (whole.passes, whole.warnings) == (Passes(30, 30, chosen=CHANNELS), found.warnings[:-1])
