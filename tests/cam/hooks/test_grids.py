"""Where a layer's positions are: by hand, and on real transformers against pytorch-grad-cam."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from pytorch_grad_cam import GradCAM, HiResCAM
from torch import Tensor, nn

from cam import default_layer, explain, survey
from cam.drawing.heatmap import minmax
from cam.errors import LayerNotSpatial
from cam.hooks.grids import Grid, Located, Location, candidates, grid_in_words, grid_of_map
from tests.cam.methods.test_methods import peer_maps


@pytest.mark.parametrize(
    ("shape", "image", "expected"),
    [
        ((1, 512, 7, 7), (224, 224), Grid("channels first", 7, 7)),
        ((1, 512, 8, 10), (299, 379), Grid("channels first", 8, 10)),
        ((1, 64, 222, 222), (224, 224), Grid("channels first", 222, 222)),
        ((2, 7, 7, 768), (224, 224), Grid("channels last", 7, 7)),
        ((2, 7, 14, 768), (224, 448), Grid("channels last", 7, 14)),
        ((1, 196, 768), (224, 224), Grid("tokens", 14, 14)),
        ((1, 197, 768), (224, 224), Grid("tokens", 14, 14, prefix=1)),
        ((1, 198, 192), (224, 224), Grid("tokens", 14, 14, prefix=2)),
        ((1, 1374, 384), (518, 518), Grid("tokens", 37, 37, prefix=5)),
        ((1, 1 + 14 * 28, 64), (224, 448), Grid("tokens", 14, 28, prefix=1)),
        ((1, 1000, 1, 1), (224, 224), None),
        ((1, 1000), (224, 224), None),
        ((1, 8, 64), (8, 64), Grid("tokens", 2, 2, prefix=4)),  # to be tried, and refused
        ((1, 5 * 6, 64), (84, 104), Grid("tokens", 5, 6)),  # 84 = 5 × 16 + 4, 104 = 6 × 16 + 8
        ((1, 6 * 7, 64), (84, 104), Grid("tokens", 6, 7)),  # the same, padded
    ],
)
def test_the_likeliest_grid_by_hand(
    shape: tuple[int, ...], image: tuple[int, int], expected: Grid | None
) -> None:
    found = candidates(shape, image)
    assert (found[0] if found else None) == expected


def test_all_that_a_shape_could_mean() -> None:
    """No stride makes 5 × 6 patches of a square: 30 tokens are 5 × 5 patches and 5 others, or
    4 × 4 and 14."""
    found = candidates((1, 30, 8), (70, 70))
    assert found[0] == Grid("tokens", 5, 5, prefix=5)
    assert {(each.height, each.width) for each in found} == {(5, 5), (4, 4)}
    assert {Grid("tokens", 5, 5, prefix) for prefix in range(6)} <= set(found)
    assert candidates((1, 30, 8), (70, 70), sides=[(5, 5)])[0] == Grid("tokens", 5, 5, prefix=5)
    behind = candidates((1, 10, 8), (48, 48))
    assert Grid("tokens", 3, 3, order=(0, 1, 2, 3, 4, 6, 7, 8, 9)) in behind
    assert candidates((1, 3, 197, 197), (224, 224)) == [
        Grid("channels first", 197, 197),
        Grid("channels last", 3, 197),
    ]
    rolled = Grid("tokens", 2, 2, order=(0, 2, 1, 3))
    assert candidates((1, 4, 8), (32, 32), orders=[rolled])[0] == rolled


@pytest.mark.parametrize(
    ("shape", "image", "expected"),
    [
        ((1, 512, 7, 7), (224, 224), Grid("channels first", 7, 7)),
        ((1, 64, 7, 10), (224, 224), None),  # not the image's proportions
        ((1, 7, 7, 7), (224, 224), None),  # of channels first, or last
        ((1, 3, 197, 197), (224, 224), None),  # attention: no stride gives 197 cells
        ((1, 49, 7), (224, 224), None),
    ],
)
def test_which_shapes_leave_no_doubt(
    shape: tuple[int, ...], image: tuple[int, int], expected: Grid | None
) -> None:
    assert grid_of_map(shape, image) == expected


@pytest.mark.parametrize(
    "grid",
    [
        Grid("channels first", 2, 3),
        Grid("channels last", 2, 3),
        Grid("tokens", 2, 3, prefix=1),
        Grid("tokens", 2, 3, order=(6, 0, 1, 2, 4, 5)),
    ],
)
def test_what_is_put_at_the_positions_is_read_there(grid: Grid) -> None:
    shape = {"channels first": (2, 4, 2, 3), "channels last": (2, 2, 3, 4), "tokens": (2, 7, 4)}
    output = torch.arange(56.0)[: 56 if grid.kind == "tokens" else 48].view(shape[grid.kind])
    kept, values = output.clone(), -torch.arange(48.0).view(2, 4, 2, 3) - 1
    changed = grid.put(output, values)
    assert torch.equal(grid.apply(changed), values)
    assert torch.equal(output, kept)
    assert int((changed != output).sum()) == 48  # the other token stays


@pytest.mark.parametrize(
    "words", ["", "14 14", "tokens 14", "tokens 14 x", "tokens 0 14", "tokens -1 4", "cells 2 2"]
)
def test_a_reshape_in_other_words_is_refused(words: str) -> None:
    with pytest.raises(LayerNotSpatial, match="reshape"):
        grid_in_words(words)
    assert grid_in_words("tokens 14 7 1") == Grid("tokens", 14, 7, prefix=1)


def test_tokens_lie_row_by_row_behind_the_class_token() -> None:
    # Positions 1 … 6 of a 2 × 3 grid, two channels, one of them ten times the other.
    tokens = torch.tensor([[[99.0, 99]] + [[i, 10.0 * i] for i in range(1, 7)]])
    found = Grid("tokens", 2, 3, prefix=1).apply(tokens)
    expected = torch.tensor([[[1.0, 2, 3], [4, 5, 6]]])
    torch.testing.assert_close(found, torch.stack([expected, 10 * expected], 1))
    last = torch.arange(12.0).view(1, 2, 3, 2)
    torch.testing.assert_close(
        Grid("channels last", 2, 3).apply(last)[0, 1], torch.tensor([[1.0, 3, 5], [7, 9, 11]])
    )


# One model of each for all tests: where its layers lie takes seconds to find out.
@cache
def vit() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model("vit_tiny_patch16_224", depth=3)
    nn.init.normal_(model.get_parameter("head.weight"), std=0.02)
    model.eval()
    return model


@cache
def swin() -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.swin_t()
    return model.eval()


def test_the_default_layer_of_a_vit_is_before_the_last_attention() -> None:
    """Behind it only the class token decides, and a map of the patches would be all zero."""
    layers = survey(vit(), torch.randn(1, 3, 224, 224))
    assert default_layer(layers) == "blocks.2.norm1"
    problems = {layer.name: layer.problem for layer in layers}
    assert problems["blocks.2"] == "the model's output depends on its class token alone"
    assert problems["norm"] == "the model's output depends on its class token alone"
    assert problems["blocks.1"] is None


def test_attention_is_no_map() -> None:
    model = timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64)
    model.blocks[0].attn.fused_attn = False
    layers = {layer.name: layer for layer in survey(model, torch.randn(1, 3, 64, 64))}
    # 17 × 17 between 16 patches and a class token; 64 / 4 = 16 cells would be near.
    assert layers["blocks.0.attn.attn_drop"].shape == (3, 17, 17)
    assert not layers["blocks.0.attn.attn_drop"].explainable


def test_a_layer_without_a_grid_is_refused() -> None:
    with pytest.raises(LayerNotSpatial, match=r"'head': its output \(1000,\) is not a grid"):
        explain(vit(), torch.randn(1, 3, 224, 224), layer="head")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
@pytest.mark.parametrize("build", [vit, swin])
def test_parity_with_pytorch_grad_cam(build: Callable[[], nn.Module], method: str) -> None:
    """The peer is told the layer and how to reshape it; we find out both."""
    model = build()
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(3))
    if build is vit:
        layer, reshape = model.get_submodule("blocks.2.norm1"), patches
    else:
        layer, reshape = model.get_submodule("norm"), channels_first
    peer = {"gradcam": GradCAM, "hirescam": HiResCAM}[method]
    shown = 0
    for wanted in (1, 285, 967):
        ours = explain(model, images, target=wanted, method=method)
        with peer(model=model, target_layers=[layer], reshape_transform=reshape) as cam:
            theirs = peer_maps(cam, images, wanted)
        for explanation, expected in zip(ours, theirs, strict=True):
            difference = minmax(explanation.map) - minmax(np.maximum(expected, 0))
            assert np.abs(difference).max() <= 1e-4, (wanted, method)
            shown += bool(np.ptp(explanation.map) > 0)
    assert shown >= 3


def patches(output: Tensor) -> Tensor:
    return output[:, 1:].reshape(len(output), 14, 14, -1).permute(0, 3, 1, 2)


def channels_first(output: Tensor) -> Tensor:
    return output.permute(0, 3, 1, 2)


def sides(shape: tuple[int, ...], image: tuple[int, int], **given: Any) -> list[tuple[int, int]]:
    """Rows and columns of all candidates, each once."""
    return list(
        dict.fromkeys((each.height, each.width) for each in candidates(shape, image, **given))
    )


@pytest.mark.parametrize(
    ("shape", "image", "expected"),
    [
        ((1, 41, 8), (40, 40), [(6, 6), (5, 5)]),  # 5 and 16 others
        ((1, 42, 8), (40, 40), [(6, 6)]),  # 17 are too many
        ((1, 2, 8), (16, 16), []),
        ((1, 4, 8), (16, 16), [(2, 2)]),
        ((1, 7, 8), (16, 16), [(2, 2)]),
        ((1, 3, 8), (16, 16), []),
        ((1, 6, 8), (64, 96), [(2, 3), (2, 2)]),
        ((1, 30, 8), (84, 104), [(5, 6), (5, 5), (4, 6), (4, 5), (4, 4)]),
        ((1, 42, 8), (84, 104), [(6, 7), (6, 6), (5, 7), (5, 6)]),
        ((1, 98, 8), (224, 448), [(7, 14), (7, 13)]),  # at strides of 32 and 33
        ((1, 5, 1, 3), (8, 24), [(1, 3)]),
        ((1, 5, 2, 3), (16, 24), [(2, 3), (5, 2)]),
        ((1, 2, 3, 5), (16, 24), [(3, 5), (2, 3)]),
        ((1, 8, 1, 1), (16, 16), []),
        ((1, 1, 2, 8), (16, 16), [(2, 8)]),
        ((1, 2, 1, 8), (16, 16), [(1, 8)]),
        ((1, 9), (16, 16), []),
        ((1, 2, 3, 4, 5), (16, 16), []),
    ],
)
def test_the_rows_and_columns_that_a_shape_may_mean(
    shape: tuple[int, ...], image: tuple[int, int], expected: list[tuple[int, int]]
) -> None:
    assert sides(shape, image) == expected


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ((5, 6), (5, 6)),
        ((4, 7), (4, 7)),  # and two others: what the model states need not be a square
        ((2, 7), (2, 7)),  # and 16 others
        ((1, 13), (5, 5)),  # 17 are too many
        ((6, 6), (5, 5)),  # there are no 36
    ],
)
def test_what_the_model_states_is_likeliest(
    stated: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert sides((1, 30, 8), (70, 70), sides=[stated])[0] == expected
    found = candidates((1, 30, 8), (70, 70), sides=[stated])
    prefixes = [each.prefix for each in found if (each.height, each.width) == expected]
    assert prefixes == list(range(30 - expected[0] * expected[1], -1, -1))


@pytest.mark.parametrize(
    ("height", "width", "image", "clear"),
    [
        (220, 220, (224, 224), True),  # four pixels less than a stride of one gives
        (219, 219, (224, 224), False),
        (7, 8, (224, 224), True),
        (7, 9, (224, 224), False),
        (7, 14, (224, 448), True),
        (14, 7, (224, 448), False),
        (1, 1, (224, 224), False),
        (1, 2, (32, 64), True),
        (60, 60, (224, 224), True),  # 56 at a stride of 4, and 4 more
        (51, 51, (224, 224), False),  # 45 at 5, 56 at 4
    ],
)
def test_which_sides_are_an_images(
    height: int, width: int, image: tuple[int, int], clear: bool
) -> None:
    found = grid_of_map((1, 500, height, width), image)
    assert found == (Grid("channels first", height, width) if clear else None)


def test_a_shape_that_could_have_its_channels_last_is_doubtful() -> None:
    assert grid_of_map((1, 7, 14, 14), (224, 448)) is None  # 14 × 14 is not a map, 7 × 14 would be
    assert grid_of_map((1, 7, 14, 28), (224, 448)) is None  # both are
    assert grid_of_map((1, 14, 14, 28), (224, 448)) == Grid("channels first", 14, 28)
    assert grid_of_map((1, 14, 14, 14), (224, 224)) is None
    assert grid_of_map((1, 49, 7), (224, 224)) is None


def test_the_grids_of_what_layers_returned() -> None:
    grid = Grid("channels first", 4, 4)
    located = Located({"a": Location((8, 4, 4), grid), "flat": Location((8,), None, "it is flat")})
    images, output = torch.zeros(2, 3, 8, 8), torch.zeros(2, 8, 4, 4)
    assert located.grids({"a": output}, images) == {"a": grid}
    for wrong in (output[:1], output[:, :, :3], torch.zeros(2, 4, 4, 8)):
        with pytest.raises(LayerNotSpatial, match="at layer 'a': its output"):
            located.grids({"a": wrong}, images)
    with pytest.raises(
        LayerNotSpatial, match=r"at layer 'b': its output \(8, 4, 4\) is not a grid of"
    ):
        located.grids({"b": output}, images)
    with pytest.raises(LayerNotSpatial, match=r"at layer 'flat': it is flat$"):
        located.grids({"flat": torch.zeros(2, 8)}, images)
