from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

from cam import Layer, default_layer, survey
from cam.errors import NoTargetLayer, UnknownMethod
from cam.hooks.grids import Grid
from cam.layers import declare_layers, stage_layers
from tests.zoo.convolutional import small
from tests.zoo.parts import Net, hook_count, images, means


def test_a_survey_lists_every_module_in_execution_order() -> None:
    found = survey(small(), images(1))
    assert [layer.name for layer in found] == [
        "conv1",
        "relu1",
        "conv2",
        "relu2",
        "dropout",
        "head",
    ]
    assert [layer.shape for layer in found] == [(4, 8, 8)] * 2 + [(5, 4, 4)] * 2 + [(5,), (3,)]
    assert [layer.explainable for layer in found] == [True] * 4 + [False] * 2
    assert found[-1].problem == "its output (3,) is not a grid of positions on the image"
    assert default_layer(found) == "relu2"


def test_a_survey_of_a_model_in_training_is_made_in_eval_mode() -> None:
    """One value a channel is more than batch normalisation takes in training."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.BatchNorm2d(4),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = survey(model.train(), images(1))
    assert [layer.name for layer in found] == ["0", "1", "2", "3", "4"]
    assert all(module.training for module in model.modules())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_a_survey_says_why_not() -> None:
    def odd(x: Tensor, **parts: nn.Module) -> Any:
        x = parts["last"](parts["relu"](parts["relu"](x)))
        parts["blind"](x)
        wide = parts["channels_last"](x.permute(0, 2, 3, 1))
        return parts["flat"](wide.mean((1, 2)))

    model = Net(
        odd,
        relu=nn.ReLU(),
        last=nn.Conv2d(3, 6, 1),
        blind=nn.Conv2d(6, 6, 1),
        never=nn.Conv2d(3, 6, 1),
        channels_last=nn.Linear(6, 64),
        flat=nn.Linear(64, 64),
    )

    found = {layer.name: layer.problem for layer in survey(model, images(1))}
    assert found == {
        "relu": "it runs 2 times in a forward pass; name the block around it, or one of its calls",
        "relu#1": None,
        "relu#2": None,
        "last": None,
        "blind": "the model's output does not depend on it",
        "channels_last": None,
        "flat": "its output (64,) is not a grid of positions on the image",
        "never": "it does not run in a forward pass",
    }


def test_an_identity_that_the_output_does_not_depend_on_is_no_default() -> None:
    """Although the output depends on what the identity reads."""

    def forward(x: Tensor, conv: nn.Module, unread: nn.Module, head: nn.Module) -> Any:
        x = conv(x)
        unread(x)
        return head(means(x))

    parts = {"conv": nn.Conv2d(3, 4, 3), "unread": nn.Sequential(), "head": nn.Linear(4, 5)}

    found = survey(Net(forward, **parts), images(1))
    assert {each.name: each.problem for each in found if each.name != "head"} == {
        "conv": None,
        "unread": "the model's output does not depend on it",
    }
    assert default_layer(found) == "conv"


def test_a_model_without_a_spatial_layer_has_no_default() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 3))
    with pytest.raises(NoTargetLayer, match="spatial output"):
        default_layer(survey(model, images(1)))


def test_a_survey_leaves_the_model_as_found() -> None:
    model = small(inplace=True)
    model.dropout.train()
    survey(model, images(1))
    assert hook_count(model) == 0
    assert model.dropout.training
    assert not model.training
    assert all(p.grad is None for p in model.parameters())

    def fail(x: Tensor, conv: nn.Module) -> None:
        conv(x)
        raise RuntimeError("broken")

    broken = Net(fail, conv=nn.Conv2d(3, 3, 1))
    with pytest.raises(RuntimeError, match="broken"):
        survey(broken, images(1))
    assert hook_count(broken) == 0
    assert broken.training


def adapter(base_layer: nn.Linear) -> nn.Module:
    """A module of peft's LoRA: the wrapped module and a sum of low rank."""
    name = "default"

    def forward(x: Tensor, base_layer: nn.Module, **lora: nn.ModuleDict) -> Any:
        given = lora["lora_A"][name](lora["lora_dropout"][name](x))
        return base_layer(x) + lora["lora_B"][name](given)

    return Net(
        forward,
        base_layer=base_layer,
        lora_dropout=nn.ModuleDict({name: nn.Sequential(nn.Identity())}),
        lora_A=nn.ModuleDict({name: nn.Linear(base_layer.in_features, 2)}),
        lora_B=nn.ModuleDict({name: nn.Linear(2, base_layer.out_features)}),
    ).eval()


@pytest.mark.parametrize("adapted", [("qkv",), ("qkv", "proj", "fc1", "fc2")])
def test_adapters_do_not_move_the_default_layer(adapted: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, embed_dim=48, num_heads=3, depth=2, num_classes=3
    ).eval()
    x = images(1, size=64)
    expected = default_layer(survey(model, x))
    assert expected == "blocks.1.norm1"
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if name in adapted and isinstance(module, nn.Linear):
                setattr(parent, name, adapter(module))
    assert default_layer(survey(model, x)) == expected


def layer(name: str, height: int, width: int, **given: object) -> Layer:
    facts = {"problem": None, "grid": Grid("channels first", height, width), **given}
    return Layer(name, "Module", (3, height, width), **facts)  # type: ignore[arg-type]


def test_the_stages_of_a_network() -> None:
    found = [
        layer("stem", 64, 64),
        layer("one.conv", 32, 32),
        layer("one", 32, 32),
        layer("two.down", 32, 32),  # the first layer of the block behind it
        layer("two.wide", 16, 32),  # no more columns than the stage behind it, so no stage
        layer("two", 16, 16),
        layer("three", 16, 16, natural=False),
        layer("pooled", 1, 1),
        layer("four", 8, 8),
        layer("side", 9, 9, problem="the model's output does not depend on it"),
        layer("box", 9, 9, common=False),
        layer("last", 8, 8),
        layer("more", 4, 4),
        layer("head", 32, 32),
    ]
    assert stage_layers(found, "last") == ("stem", "one", "two", "last")
    assert stage_layers(found, "more") == ("one", "two", "last", "more")  # of five the last four
    assert stage_layers(found, "two") == ("stem", "one", "two")
    assert stage_layers(found, "stem") == ("stem",)


def test_a_stage_ends_at_a_rectified_layer_if_it_has_one() -> None:
    found = [
        layer("one.relu", 16, 16, rectified=True),
        layer("one", 16, 16),
        layer("two.act", 16, 16, rectified=True),
        layer("two.linear", 8, 8),
        layer("two", 8, 8),
        layer("last", 4, 4),
    ]
    assert stage_layers(found, "last") == ("two.act", "two", "last")


def test_which_layers_are_rectified() -> None:
    found = {each.name: each.rectified for each in survey(small(), images(1))}
    assert found["relu1"]
    assert found["relu2"]
    assert not found["conv1"]
    assert not found["head"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "expected", "stages"),
    [
        # The authors' choice.
        ("resnet18", "layer4", ("layer1", "layer2", "layer3", "layer4")),
        # Not the adaptive pooling behind it.
        ("vgg11", "features", ("features.9", "features.14", "features.19", "features")),
        ("densenet121", "features", None),
        ("mobilenet_v3_small", "features", None),
        ("squeezenet1_1", "classifier.2", None),
        (
            "mobilenet_v2",
            "features",
            ("features.4.conv.0", "features.7.conv.0", "features.14.conv.0", "features"),
        ),
        (
            "efficientnet_b0",
            "features",
            ("features.2", "features.3", "features.5", "features"),
        ),
        ("swin_t", "permute", ("features.1", "features.3", "features.5", "permute")),
        ("vit_b_16", "encoder", ("encoder",)),
    ],
)
def test_the_layers_of_known_architectures(
    build: str, expected: str, stages: tuple[str, ...] | None
) -> None:
    model = torchvision.models.get_model(build, weights=None).eval()
    found = survey(model, images(1, size=224))
    assert default_layer(found) == expected
    if stages:
        assert stage_layers(found, expected) == stages


def test_a_declared_layer_must_be_of_a_method() -> None:
    with pytest.raises(UnknownMethod, match="gradcan"):
        declare_layers(nn.Identity(), {"gradcan": "conv"})
