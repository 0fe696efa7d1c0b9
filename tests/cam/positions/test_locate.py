"""Where layers' positions lie: found by changing the image, on models whose shapes mislead."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersForImageClassification

from cam import Question, UnitTarget, default_layer, explain, explain_batch, survey
from cam.drawing.placement import Box, Placement, resize
from cam.errors import LayerNotSpatial, MethodUnsuited, UnknownLayer
from cam.explanation import ExplainedImage
from cam.hooks.grids import Grid
from cam.positions.locate import declare, locate
from cam.positions.responses import patches_of, peaks_of
from tests.quick import quick
from tests.zoo.convolutional import small, turned_inside
from tests.zoo.parts import Net, hook_count, images, means, order
from tests.zoo.transformers import Tokens, of_tokens, strided, windowed


def built(model: nn.Module) -> nn.Module:
    return model.eval().requires_grad_(False)


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize(
    ("extra", "at", "expected"),
    [
        (0, "front", Grid("tokens", 5, 5)),
        (1, "front", Grid("tokens", 5, 5, prefix=1)),
        (5, "front", Grid("tokens", 5, 5, prefix=5)),  # 5 × 6, by the shape alone
        (5, "behind", Grid("tokens", 5, 5)),
        (11, "front", Grid("tokens", 5, 5, prefix=11)),  # 6 × 6
        (1, "middle", Grid("tokens", 5, 5, order=(*range(13), *range(14, 26)))),
    ],
)
def test_where_the_patches_are_among_other_tokens(extra: int, at: str, expected: Grid) -> None:
    model = built(Tokens(extra=extra, at=at))
    located = locate(model, images(1, size=40))
    assert located.grid("block") == expected
    assert located.grid("block.0") == expected
    # ∂y/∂A is the same at every token, so the map is the activation's projection, cell by cell.
    x = torch.zeros(1, 3, 40, 40)
    x[:, :, 8:16, 24:32] = 5
    (found,) = explain(model, x, target=2, method="hirescam", layer="block", signed=True)
    away = np.abs(found.map - np.median(found.map))
    assert int(away.argmax()) == 1 * 5 + 3


@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_were_strided_over(seed: int) -> None:
    """49 tokens are 7 × 7, not 6 × 7 and 7 others, although every patch lies between two rows."""
    torch.manual_seed(seed)
    located = locate(built(strided()), images(1, size=224))
    assert located.grid("kept") == Grid("tokens", 7, 7)
    assert located.grid("mixed") is None


def test_tokens_column_by_column() -> None:
    turned, straight = built(Tokens(turned=True)), built(Tokens())
    straight.load_state_dict(turned.state_dict())
    x = images(1, size=40)
    grid = locate(turned, x).grid("block")
    assert grid
    assert grid.placement == Placement(Box(0, 0, 40, 40), 40, 40, transposed=True)
    (wanted,) = explain(straight, x, target=1, layer="block", signed=True)
    (found,) = explain(turned, x, target=1, layer="block", signed=True)
    np.testing.assert_allclose(found.map, resize(wanted.map, 40, 40), atol=1e-5)


def test_tokens_in_no_order_are_refused() -> None:
    model = built(Tokens(shuffled=True))
    located = locate(model, images(1, size=40))
    assert located.grid("block") is None
    problem = located.found["block"].problem
    assert problem
    assert "does not lie on the image" in problem
    with pytest.raises(LayerNotSpatial, match="at layer 'block': its output"):
        explain(model, images(1, size=40), layer="block")
    names = {layer.name: layer for layer in survey(model, images(1, size=40))}
    assert names["block"].problem == problem
    assert default_layer(list(names.values())) == "embed"


@pytest.mark.parametrize("attention", ["none", "window", "all"])
@pytest.mark.parametrize(("size", "side"), [(64, 2), (64, 4), (96, 3), (96, 4), (128, 8)])
def test_tokens_in_windows_are_refused(size: int, side: int, attention: str) -> None:
    """On 8 × 8 positions, windows of 4 × 4 were taken for rows."""
    for seed in range(2):
        model = built(windowed(side, attention, plain=False, seed=seed))
        located = locate(model, torch.rand(1, 3, size, size))
        for number in range(3):
            assert located.grid(f"norms.{number}") is None
            assert "in windows" in (located.found[f"norms.{number}"].problem or "")
    if attention != "window":
        model = built(windowed(side, attention, plain=True, seed=0))
        located = locate(model, torch.rand(1, 3, size, size))
        cells = size // 8
        for number in range(3):
            assert located.grid(f"norms.{number}") == Grid("tokens", cells, cells)


@pytest.mark.parametrize("size", quick([64, 96, 128], [64]))
def test_pixels_of_patches_are_no_rows(size: int) -> None:
    """MobileViTV2 unfolds a map of 4 × 4 to four pixels of four patches, and one of 3 × 3 after it
    is made larger."""
    model = built(timm.create_model("mobilevitv2_050", num_classes=5))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.2)
    located = locate(model, images(1, size=size))
    inside = [name for name in located.found if "transformer" in name and "attn" not in name]
    assert inside
    for name in inside:
        if len(located.found[name].shape) == 3:
            assert located.grid(name) is None, name
    assert located.grid("stages.3") is not None


def test_a_wide_image_has_a_wide_grid() -> None:
    located = locate(built(Tokens(extra=1)), torch.randn(1, 3, 32, 72))
    assert located.grid("block") == Grid("tokens", 4, 9, prefix=1)


@pytest.mark.slow
def test_registers_of_dinov2() -> None:
    """30 tokens of 70 × 70 pixels: five registers and classes before 5 × 5 patches, not 5 × 6."""
    model = timm.create_model("vit_small_patch14_reg4_dinov2", img_size=70, depth=2, num_classes=3)
    nn.init.normal_(model.head.weight)
    layers = {each.name: each for each in survey(built(model), images(1, size=70))}
    assert layers["blocks.1.norm1"].grid == Grid("tokens", 5, 5, prefix=5)
    config = Dinov2WithRegistersConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=16
    )
    hf = built(Dinov2WithRegistersForImageClassification(config))
    located = locate(hf, images(1, size=64))
    name = "dinov2_with_registers.layernorm"
    assert located.found[name].shape == (21, 24)  # 4 × 4 and five others; 4 × 5 and one, one thinks
    assert located.grid(name) == Grid("tokens", 4, 4, prefix=5)


def test_hieras_units_are_put_back_in_order() -> None:
    """Against the model's own `reroll`."""
    model = built(
        timm.create_model(
            "hiera_tiny_224", img_size=64, embed_dim=16, stages=(1, 1, 1, 1), num_classes=4
        )
    )
    x = images(1, size=64)
    for name, block, side in (("blocks.0", 0, 16), ("blocks.1", 1, 8), ("blocks.2", 2, 4)):
        (found,) = explain(model, x, target=1, method="hirescam", layer=name, signed=True)
        kept: list[Tensor] = []
        with torch.enable_grad():
            hook = model.get_submodule(name).register_forward_hook(
                lambda m, a, out, kept=kept: kept.append(out.requires_grad_()) or None
            )
            logit = model(x.clone().requires_grad_())[0, 1]
            hook.remove()
            (gradient,) = torch.autograd.grad(logit, kept[0])
        product = (gradient * kept[0].detach()).sum(-1, keepdim=True)
        reroll = model.get_submodule("reroll")
        expected = reroll(product, block)[0, ..., 0].numpy()
        assert found.map.shape == (side, side)
        np.testing.assert_allclose(found.map, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(("size", "inside"), [((64, 64), 96), ((128, 128), 56), ((48, 64), 64)])
def test_a_model_that_resizes_its_input(size: tuple[int, int], inside: int) -> None:
    model = built(
        Net(
            lambda x, trunk, head: head(
                means(trunk(interpolate(x, (inside, inside), mode="bilinear")))
            ),
            trunk=nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(), nn.Conv2d(8, 8, 2, 2)),
            head=nn.Linear(8, 3),
        )
    )
    cells = inside // 8
    layers = survey(model, torch.randn(1, 3, *size))
    assert default_layer(layers) == "trunk"
    assert next(each.grid for each in layers if each.name == "trunk") == Grid(
        "channels first", cells, cells
    )
    (found,) = explain(model, torch.randn(1, 3, *size), layer="trunk")
    assert found.map.shape == (cells, cells)


def test_what_is_no_map_is_refused() -> None:
    located = locate(built(turned_inside()), images(1, size=32))
    assert located.grid("conv") == Grid("channels first", 8, 8)
    for name in ("row", "mixed"):
        assert located.grid(name) is None, name
    whole = Box(0, 0, 32, 32)
    for name, placement in (
        ("flipped", Placement(whole, 32, 32, mirrored=True)),
        ("turned", Placement(whole, 32, 32, transposed=True)),
    ):
        assert located.grid(name) == Grid("channels first", 8, 8, placement=placement)
    assert located.found["still"].problem == "its output (8, 8, 8) does not change with the image"


def encoder(*, batch_first: bool) -> nn.Module:
    """torch's own transformer of 4 × 4 patches, whose tokens lie before or behind the batch."""

    def mixed(tokens: Tensor, encoder: nn.Module) -> Any:
        if batch_first:
            return encoder(tokens).square()
        return encoder(tokens.transpose(0, 1)).transpose(0, 1).square()

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first)
    return of_tokens(
        mixed,
        embed=nn.Conv2d(3, 16, 8, 8),
        encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        head=nn.Linear(16, 5),
    )


def test_tokens_before_the_batch_are_read_as_those_behind_it() -> None:
    x = images(2, size=32)
    first, other = (built(encoder(batch_first=each)) for each in (False, True))
    found = {layer.name: layer for layer in survey(first, x[:1])}
    assert default_layer([*found.values()]) == default_layer(survey(other, x[:1])) == "encoder"
    assert found["encoder"].shape == (16, 16)
    for asked in (
        {"method": ["gradcam", "hirescam", "smoothgradcam++", "rollout", "scorecam"]},
        {"layer": "encoder.layers.0", "smooth": "augment"},
        {"layer": "encoder.layers.0", "reshape": "tokens 3 5 1"},
        {"target": UnitTarget("encoder.layers.0", 3), "layer": "embed"},
    ):
        pairs = zip(explain(first, x, **asked), explain(other, x, **asked), strict=True)
        for one, expected in pairs:
            assert np.ptp(expected.map) > 0
            np.testing.assert_allclose(one.map, expected.map, rtol=1e-3, atol=1e-6)
    with pytest.raises(MethodUnsuited, match=r"not \(tokens, batch, channels\) as at .*'encoder'"):
        explain(first, x, method="ablationcam")


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: (x[0, 0], x[0, 1]), r"a tuple of tensors of shape \(8, 8\), \(8, 8\), not one"),
        (lambda x: [x] * 5, r"a list of .*\(1, 4, 8, 8\) and others, not one tensor"),
        (
            lambda x: {"a": x, "b": "c"},
            r"a dict of tensors of shape \(1, 4, 8, 8\), not one tensor",
        ),
    ],
)
def test_an_output_of_several_tensors_is_named(
    returned: Callable[[Tensor], Any], words: str
) -> None:
    def reading(x: Tensor, conv: nn.Module, several: nn.Module, head: nn.Module) -> Any:
        x = conv(x)
        several(x)
        return head(means(x))

    parts = {"conv": nn.Conv2d(3, 4, 1), "several": Net(returned), "head": nn.Linear(4, 5)}
    model, x = built(Net(reading, **parts)), images(1)
    (problem,) = [each.problem for each in survey(model, x) if each.name == "several"]
    for reshape in (None, "tokens 8 8"):
        with pytest.raises(
            LayerNotSpatial, match=f"at layer 'several': its output is {words}"
        ) as e:
            explain(model, x, layer="several", reshape=reshape)
        assert str(e.value).endswith(f": {problem}")
        assert str(e.value).endswith("or tokens (batch, tokens, channels)")


@pytest.mark.slow
def test_it_is_looked_at_once_and_the_model_is_left_as_found() -> None:
    model, calls = small().train(), list[int]()
    model.add_module("never", nn.ReLU())
    counted = model.register_forward_hook(lambda *_: calls.append(1))
    first = locate(model, images(1))
    assert len(calls) == 15  # the image, nine patches, four edges, and once with a graph
    assert locate(model, images(1, seed=9)).found == first.found
    assert len(calls) == 15
    locate(model, images(1, size=16))  # of another size it may be otherwise
    assert len(calls) > 20
    counted.remove()
    assert model.training
    assert hook_count(model) == 0
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_photo_that_is_not_finite_misleads_nobody() -> None:
    model = built(Tokens(extra=5))
    assert locate(model, torch.full((1, 3, 40, 40), torch.nan)).grid("block") == Grid(
        "tokens", 5, 5, prefix=5
    )


def test_a_users_own_reshape() -> None:
    """In words, or a function, for tokens that nobody can guess; by name or pattern."""
    model, x = built(Tokens(shuffled=True)), images(2, size=40)

    def turn(output: Tensor) -> Tensor:
        return output[:, order(25).argsort()].transpose(1, 2).reshape(len(output), -1, 5, 5)

    straight = built(Tokens())
    straight.load_state_dict(model.state_dict())
    expected = explain(straight, x, target=1, method="layercam", layer="block")
    own = explain(model, x, target=1, method="layercam", layer="block", reshape=turn)
    for one, other in zip(own, expected, strict=True):
        np.testing.assert_allclose(one.map, other.map, rtol=1e-4, atol=1e-7)
    words = explain(model, x, target=1, layer="block", reshape={"blo*": "tokens 5 5"})
    assert words[0].map.shape == (5, 5)
    with pytest.raises(LayerNotSpatial, match="does not lie on the image"):  # as before
        explain(model, x, layer="block")
    with pytest.raises(MethodUnsuited, match="reshape of your own has no inverse"):
        explain(model, x, layer="block", method="ablationcam", reshape=turn)


@pytest.mark.parametrize(
    ("reshape", "words"),
    [
        ("tokens 5 6", "has no 30 tokens for 'tokens 5 6'"),
        ("rows 5 5", "not 'rows 5 5'"),
        (lambda output: output, r"returns \(2, 25, 16\), not \(batch, channels, height, width\)"),
        (lambda output: None, "returns NoneType"),
        (lambda output: output[9, 9], "cannot be reshaped: index 9"),
    ],
)
def test_a_reshape_that_does_not_fit(reshape: object, words: str) -> None:
    with pytest.raises(LayerNotSpatial, match=words.replace("(2,", "(1,")):
        explain(built(Tokens()), images(2, size=40), layer="block", reshape=reshape)  # type: ignore[arg-type]


def test_what_is_declared_holds_for_every_way_in() -> None:
    model, x = built(Tokens(shuffled=True)), images(1, size=40)
    declare(model, {"block*": "tokens 5 5"})
    (answer,) = explain_batch(model, x, [Question((), "gradcam", ("block",))])
    assert isinstance(answer, ExplainedImage)
    layers = {each.name: each for each in survey(model, x)}
    assert layers["block"].grid == Grid("tokens", 5, 5)
    assert layers["block"].explainable
    assert len(explain(model, x, layer="block", method="scorecam", budget=2)) == 1


def test_layers_by_pattern() -> None:
    """All that match at which a map can be made, in execution order, each once."""
    model, x = built(Tokens(extra=1)), images(1, size=40)
    found = explain(model, x, layer=["block.?", "embed", "bl*"])
    assert [each.layer for each in found] == ["block.0", "block.1", "block.2", "embed", "block"]
    for pattern in ("nothing*", "hea?"):
        with pytest.raises(UnknownLayer, match=r"the last are block\.1"):
            explain(model, x, layer=pattern)


@pytest.mark.parametrize(
    ("grid", "good"),
    [
        (Grid("channels first", 8, 8), True),
        (Grid("channels first", 16, 4), False),  # as of attention (196, 196, 4)
        (Grid("tokens", 8, 8), False),
    ],
)
def test_patches_that_hit_by_chance(grid: Grid, good: bool) -> None:
    """Three of four patches move the position that is nearest to them, but what moves lies in the
    other half of the image: enough only where the shape leaves no doubt."""
    patches = patches_of((64, 64), (8, 8))
    moved = torch.zeros(len(patches), grid.height, grid.width)
    for index, (patch, each) in enumerate(zip(patches, moved, strict=True)):
        row, column = patch.top * grid.height // 64, patch.left * grid.width // 64
        each[grid.height - 1 - row, grid.width - 1 - column] = 4
        each[row, column] = 5 if index < 7 else 0
    found = peaks_of(grid, moved.flatten(1) if grid.kind == "tokens" else moved, patches).fit(
        (64, 64)
    )
    assert found.hits >= 0.75
    assert found.follows < 0.7
    assert found.good is good
