"""Capture: what it collects, what it refuses, and that it leaves nothing behind."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cam import Capture
from cam.errors import LayerDidNotRun, LayerNotSpatial, LayerReused, NoGradientPath, UnknownLayer
from tests.zoo.convolutional import Small, small
from tests.zoo.parts import Net, hook_count, images, scale


def by_plain_autograd(model: Small, x: Tensor, target: int) -> tuple[Tensor, Tensor]:
    """conv2's output and its gradient, written out without any hook."""
    first = functional.relu(model.conv1(x))
    activation = model.conv2(first)
    logits = model.head(functional.relu(activation).mean(dim=(2, 3)))
    (gradient,) = torch.autograd.grad(logits[:, target].sum(), activation)
    return activation.detach(), gradient


def test_equals_plain_autograd() -> None:
    model, x = small(), images()
    activation, gradient = by_plain_autograd(model, x, 2)
    with Capture(model, ["conv2"]) as capture:
        capture.backward(model(x)[:, 2].sum())
        torch.testing.assert_close(capture.activations["conv2"], activation, rtol=0, atol=0)
        torch.testing.assert_close(capture.gradients["conv2"], gradient)


def test_an_in_place_op_after_the_layer_changes_neither_activation_nor_gradient() -> None:
    plain, inplace, x = small(), small(inplace=True), images()
    activation, gradient = by_plain_autograd(plain, x, 1)
    assert (activation < 0).any()
    with Capture(inplace, ["conv2"]) as capture:
        capture.backward(inplace(x)[:, 1].sum())
        torch.testing.assert_close(capture.activations["conv2"], activation, rtol=0, atol=0)
        torch.testing.assert_close(capture.gradients["conv2"], gradient)


def test_a_layer_that_returns_its_input_survives_in_place_ops_on_that_input() -> None:
    def passing(x: Tensor, layer: nn.Module) -> Tensor:
        x = x * 1.0
        y: Tensor = layer(x)
        x.mul_(100.0)
        return y.sum((2, 3))

    model, x = Net(passing, layer=nn.Identity()), images()
    with Capture(model, ["layer"]) as capture:
        capture.backward(model(x)[:, 0].sum())
        torch.testing.assert_close(capture.activations["layer"], x, rtol=0, atol=0)


def test_several_layers_in_one_pass_each_equal_their_own_pass() -> None:
    model, x = small(inplace=True), images()
    alone = {}
    for layer in ("conv1", "conv2", "relu2"):
        with Capture(model, [layer]) as capture:
            capture.backward(model(x)[:, 0].sum())
            alone[layer] = (capture.activations[layer], capture.gradients[layer])
    with Capture(model, list(alone)) as capture:
        capture.backward(model(x)[:, 0].sum())
        for layer, (activation, gradient) in alone.items():
            torch.testing.assert_close(capture.activations[layer], activation)
            torch.testing.assert_close(capture.gradients[layer], gradient)


def test_a_second_backward_replaces_the_gradients() -> None:
    model, x = small(), images()
    with Capture(model, ["conv2"]) as capture:
        logits = model(x)
        capture.backward(logits[:, 0].sum(), retain_graph=True)
        first = capture.gradients["conv2"]
        capture.backward(logits[:, 2].sum())
        second = capture.gradients["conv2"]
    torch.testing.assert_close(first, by_plain_autograd(model, x, 0)[1])
    torch.testing.assert_close(second, by_plain_autograd(model, x, 2)[1])


class Pair(NamedTuple):
    label: int
    grid: Tensor


CONTAINERS: dict[str, Any] = {
    "tuple": (lambda t: (3, t), lambda o: o[1]),
    "list": (lambda t: [t, "x"], lambda o: o[0]),
    "named tuple": (lambda t: Pair(7, t), lambda o: o.grid),
    "mapping": (lambda t: OrderedDict(n=1, grid=t), lambda o: o["grid"]),
}


@pytest.mark.parametrize("kind", CONTAINERS)
def test_the_first_tensor_of_a_container_is_captured_and_the_container_kept(kind: str) -> None:
    pack, unpack = CONTAINERS[kind]

    def unpacked(x: Tensor, layer: nn.Module) -> Any:
        packed = layer(x)
        assert type(packed) is type(pack(x))
        return (3 * unpack(packed)).sum((2, 3))

    model, x = Net(unpacked, layer=Net(lambda x: pack(x * 2))), images()
    with Capture(model, ["layer"]) as capture:
        capture.backward(model(x)[:, 0].sum())
        torch.testing.assert_close(capture.activations["layer"], 2 * x)
        expected = torch.zeros_like(x)
        expected[:, 0] = 3
        torch.testing.assert_close(capture.gradients["layer"], expected)


def test_the_trunk_is_only_inference() -> None:
    model, x = small(), images()
    recorded: dict[str, bool] = {}
    model.relu1.register_forward_hook(lambda m, a, out: recorded.update(trunk=out.requires_grad))
    model.relu2.register_forward_hook(lambda m, a, out: recorded.update(tail=out.requires_grad))
    with Capture(model, ["conv2"]):
        model(x)
    assert recorded == {"trunk": False, "tail": True}


def test_works_inside_inference_mode() -> None:
    model, x = small(), images()
    _, gradient = by_plain_autograd(model, x, 1)
    with torch.inference_mode(), Capture(model, ["conv2"]) as capture:
        capture.backward(model(x.clone())[:, 1].sum())
        got = capture.gradients["conv2"]
    torch.testing.assert_close(got, gradient)


def test_a_layer_that_runs_twice_is_refused_with_the_block_to_name() -> None:
    block = Net(lambda x, relu: relu(relu(x) - 1).sum((2, 3)), relu=nn.ReLU())
    model = nn.Sequential(OrderedDict(block=block))
    with (
        pytest.raises(
            LayerReused, match=r"'block\.relu' runs more than once.*name the block.*'block'"
        ),
        Capture(model, ["block.relu"]),
    ):
        model(images())
    assert hook_count(model) == 0


def test_a_layer_without_a_tensor_is_refused() -> None:
    model = Net(lambda x, layer: x.sum((2, 3)) + layer(x), layer=Net(len))
    with (
        pytest.raises(LayerNotSpatial, match="'layer' returns no floating-point tensor but int"),
        Capture(model, ["layer"]),
    ):
        model(images())


def test_a_layer_that_did_not_run_is_named() -> None:
    model = Net(lambda x, spare: x.sum((2, 3)), spare=nn.Conv2d(3, 3, 1))
    with Capture(model, ["spare"]) as capture:
        logits = model(images())
        with pytest.raises(LayerDidNotRun, match="'spare' did not run"):
            capture.backward(logits[:, 0].sum())


def test_a_target_that_does_not_depend_on_the_layer_is_refused() -> None:
    model = Net(
        lambda x, a, b: a(x).detach().sum((2, 3)) + b(x).sum((2, 3)), a=scale(2.0), b=scale(3.0)
    )
    with Capture(model, ["a"]) as capture:
        logits = model(images())
        with pytest.raises(NoGradientPath, match="'a'"):
            capture.backward(logits.sum())
    with Capture(model, ["a", "b"]) as capture:
        capture.backward(model(images()).sum())
        with pytest.raises(NoGradientPath, match="'a'"):
            _ = capture.gradients


@pytest.mark.parametrize("wrong", ["conv3", "", "head.weight"])
def test_a_failed_enter_leaves_no_hook_and_the_grad_mode(wrong: str) -> None:
    model = small()
    with pytest.raises(UnknownLayer, match=repr(wrong)), Capture(model, ["conv1", wrong]):
        pass
    assert hook_count(model) == 0
    assert torch.is_grad_enabled()


def test_nothing_is_left_after_success_or_an_exception() -> None:
    model, x = small(), images()
    before = {name: p.requires_grad for name, p in model.named_parameters()}
    with Capture(model, ["conv1", "conv2"]) as capture:
        capture.backward(model(x)[:, 0].sum())
        tensor = capture._captured["conv2"]
        assert hook_count(model) == 2
        assert tensor._backward_hooks
    assert not tensor._backward_hooks
    with pytest.raises(IndexError), Capture(model, ["conv1", "conv2"]):
        model(x)[:, 3]
    assert hook_count(model) == 0
    assert torch.is_grad_enabled()
    assert all(p.grad is None for p in model.parameters())
    assert {name: p.requires_grad for name, p in model.named_parameters()} == before
    with torch.no_grad(), Capture(model, ["conv1"]):
        model(x)
    assert torch.is_grad_enabled()


def test_layers_are_named_or_given_as_modules_one_or_several() -> None:
    model, x = small(), images(1)
    for layers in (["conv2"], [model.conv2], model.conv2, "conv2", (model.conv2, "conv2")):
        with Capture(model, layers) as capture:
            model(x)
            assert list(capture.activations) == ["conv2"]
        assert hook_count(model) == 0
    with pytest.raises(UnknownLayer, match="given as a layer is not part of the model"):
        Capture(model, [nn.Conv2d(3, 4, 3)]).__enter__()
    assert hook_count(model) == 0


def test_gradients_that_are_read_too_early_say_so() -> None:
    model, x = small(), images(1)
    with Capture(model, ["conv2"]) as capture:
        score = model(x)[0, 1]
        with pytest.raises(NoGradientPath, match=r"call capture\.backward\(score\) before"):
            _ = capture.gradients
        capture.backward(score)
        assert capture.gradients["conv2"].any()
    with Capture(model, ["conv2"], trunk="train") as capture:
        model(x)[0, 1].backward()
        assert capture.gradients["conv2"].any()
