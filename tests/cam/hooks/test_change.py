"""What hooks may change: the tutorials' own examples, and that nothing is left."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

from cam import Capture, Change, ablate, clamp, leaves, scale
from cam.errors import InvalidOption, LayerReused, NoGradientPath, UnknownLayer
from cam.hooks.capture import Trunk
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, hook_count, images


def test_a_hook_doubles_a_gradient() -> None:
    x = torch.tensor([1.0, 2, 3, 4])
    model = Net(lambda image, x, y: y(x(image) ** 2).mean(), x=nn.Identity(), y=nn.Identity())
    with Capture(model, ["x", "y"]) as plain:
        plain.backward(model(x))
    torch.testing.assert_close(plain.gradients["y"], torch.full((4,), 0.25))
    torch.testing.assert_close(plain.gradients["x"], 0.25 * 2 * x)
    with Capture(model, ["x"], change={"y": Change(gradient=scale(2))}) as doubled:
        doubled.backward(model(x))
    torch.testing.assert_close(doubled.gradients["y"], torch.full((4,), 0.5))
    torch.testing.assert_close(doubled.gradients["x"], 0.5 * 2 * x)  # what lies before feels it
    assert hook_count(model) == 0


def test_a_hook_clamps_a_convolutions_gradient() -> None:
    model, x = small(), images()
    change = {"conv2": Change(gradient=clamp(0))}
    with Capture(model, ["conv1", "conv2"]) as plain:
        plain.backward(model(x)[:, 0].sum())
    with Capture(model, ["conv1"], change=change) as clamped:
        clamped.backward(model(x)[:, 0].sum())
    assert (plain.gradients["conv2"] < 0).any()
    torch.testing.assert_close(clamped.gradients["conv2"], plain.gradients["conv2"].clamp(min=0))
    assert not torch.equal(clamped.gradients["conv1"], plain.gradients["conv1"])


def test_an_output_is_changed_for_what_follows() -> None:
    model, x = small(), images()
    with Capture(model, ["relu2"], change={"conv2": Change(output=ablate([1, 3], to=-1))}) as cut:
        logits = model(x)
    assert (cut.activations["conv2"][:, [1, 3]] == -1).all()
    assert not cut.activations["relu2"][:, [1, 3]].any()
    assert cut.activations["relu2"][:, [0, 2, 4]].any()
    with Capture(model, ["relu2"]) as plain:
        untouched = model(x)
    kept = plain.activations["relu2"]
    torch.testing.assert_close(kept[:, [0, 2, 4]], cut.activations["relu2"][:, [0, 2, 4]])
    expected = model.head((kept * torch.tensor([1.0, 0, 1, 0, 1])[:, None, None]).mean((2, 3)))
    torch.testing.assert_close(logits, expected)
    assert not torch.equal(logits, untouched)
    torch.testing.assert_close(model(x), untouched)  # and it is gone


def test_an_input_is_changed_before_the_layer_sees_it() -> None:
    model, x = small(), images()
    with Capture(model, [], inputs=True, change={"conv1": Change(input=scale(0.5))}) as capture:
        logits = model(x)
    torch.testing.assert_close(capture.inputs["conv1"], x / 2)
    torch.testing.assert_close(logits, model(x / 2))


def test_tokens_have_their_channels_last() -> None:
    values = torch.ones(1, 4, 3)
    found = ablate([2], dim=-1)(values)
    assert not found[..., 2].any()
    assert found[..., :2].all()
    assert values.all()


def test_all_leaves_at_once_with_each_call_of_a_reused_one() -> None:
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    names = leaves(model)
    assert len(names) == sum(not list(module.children()) for module in model.modules())
    with pytest.raises(LayerReused), Capture(model, names):
        model(images(1, size=64))
    with Capture(model, names, inputs=True, each_call=True) as capture:
        capture.backward(model(images(1, size=64))[0, 7])
    seen = capture.activations
    assert set(seen) == {*names, *(f"layer{i}.{j}.relu#2" for i in (1, 2, 3, 4) for j in (0, 1))}
    assert set(capture.reached) == set(seen) == set(capture.inputs)
    torch.testing.assert_close(seen["layer4.1.relu#2"].mean((2, 3)), capture.inputs["fc"])
    torch.testing.assert_close(
        model.fc(capture.inputs["fc"]).detach(), seen["fc"], rtol=1e-5, atol=1e-6
    )
    assert hook_count(model) == 0


@pytest.mark.slow
def test_the_first_layer_of_vgg_16() -> None:
    """Its 64 maps are the convolution written out; hooks see it before the in-place ReLU."""
    torch.manual_seed(0)
    model = torchvision.models.vgg16().eval()
    x = images(1, size=32)
    with Capture(model, ["features.0"], inputs=True) as capture:
        model(x)
    first = model.features[0]
    expected = nn.functional.conv2d(x, first.weight, first.bias, padding=1)
    torch.testing.assert_close(capture.activations["features.0"], expected.detach())
    torch.testing.assert_close(capture.inputs["features.0"], x)
    assert capture.activations["features.0"].shape == (1, 64, 32, 32)
    assert (capture.activations["features.0"] < 0).any()


def test_nothing_is_left_after_an_exception_or_a_failed_enter() -> None:
    model = small()

    def failing(values: Tensor) -> Tensor:
        raise ZeroDivisionError

    for change in (Change(input=failing), Change(output=failing), Change(gradient=failing)):
        with (
            pytest.raises(ZeroDivisionError),
            Capture(model, ["relu1"], change={"conv2": change}) as capture,
        ):
            capture.backward(model(images())[:, 0].sum())
        assert hook_count(model) == 0
        assert torch.is_grad_enabled()
    with pytest.raises(UnknownLayer), Capture(model, ["conv1"], change={"conv9": Change()}):
        pass
    assert hook_count(model) == 0
    assert np.isfinite(model(images()).detach().numpy()).all()


def trained(trunk: Trunk, **changes: Change) -> dict[str, Tensor]:
    """Every parameter's gradient of a loss, of a model that is trained with changes on the way."""
    model = small()
    with Capture(model, ["conv2"], change=changes, trunk=trunk):
        model(images()).square().sum().backward()
    assert hook_count(model) == 0
    return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


def test_training_gives_every_parameter_its_gradient() -> None:
    model = small()
    model(images()).square().sum().backward()
    plain = {name: each.grad for name, each in model.named_parameters()}
    found = trained("train")
    assert found.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(found[name], gradient)


def test_training_goes_through_what_is_changed() -> None:
    """Half of a layer's gradient is half of every gradient before it, and as much after it."""
    plain, halved = trained("train"), trained("train", conv2=Change(gradient=scale(0.5)))
    for name, gradient in plain.items():
        share = 0.5 if name.startswith(("conv1", "conv2")) else 1
        torch.testing.assert_close(halved[name], share * gradient)
    clamped = trained("train", conv2=Change(output=clamp(0, 0.05)))
    assert clamped.keys() == plain.keys()
    assert clamped["conv1.weight"].any()
    assert not torch.allclose(clamped["conv1.weight"], plain["conv1.weight"])


@pytest.mark.parametrize("none", [True, False])
def test_a_backward_that_would_lose_parameters_is_refused(none: bool) -> None:
    model = small()
    model(images()).sum().backward()
    model.zero_grad(set_to_none=none)
    words = r"backward\(\) gives no gradient to conv1.weight and .* before layer 'conv2'.*'train'"
    with pytest.raises(NoGradientPath, match=words), Capture(model, ["conv2", "relu2"]):
        model(images()).sum().backward()
    assert hook_count(model) == 0
    frozen = small().requires_grad_(False)
    for name, parameter in frozen.named_parameters():
        parameter.requires_grad_(not name.startswith(("conv1", "conv2")))
    with Capture(frozen, ["conv2"]) as capture:
        frozen(images()).sum().backward()  # nothing is lost
        assert capture.gradients["conv2"].any()
    assert all((each.grad is not None) == each.requires_grad for each in frozen.parameters())


def test_capturing_alone_touches_no_gradient() -> None:
    model = small()
    with Capture(model, ["conv2"]) as capture:
        capture.backward(model(images()).sum())
    assert all(each.grad is None for each in model.parameters())


@pytest.mark.parametrize("place", ["input", "output", "gradient"])
def test_a_change_keeps_the_shape(place: str) -> None:
    """A mean over positions broadcasts or is pooled again, and nobody would notice."""
    model = small()
    change = Change(**{place: lambda values: values.mean((2, 3), keepdim=True)})
    with (
        pytest.raises(InvalidOption, match=rf"of the {place} .*layer 'conv2'.*keep the shape"),
        Capture(model, ["conv2"], change={"conv2": change}) as capture,
    ):
        capture.backward(model(images(1))[0, 1])
    assert hook_count(model) == 0
