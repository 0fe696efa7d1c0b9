"""Models that resize, crop, pad, mirror or turn their input themselves: the map lies where they
look, and what no placement explains is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, pad

from cam import ClassTarget, default_layer, explain, factorise, observe, survey
from cam.drawing.placement import Box, Placement, place
from cam.errors import LayerNotSpatial
from cam.hooks.grids import Grid
from cam.positions.locate import locate
from cam.positions.views import Axis, View
from tests.quick import quick
from tests.zoo.convolutional import all_positive, changed_between, deep, of_parts, six_convolutions
from tests.zoo.detectors import torchvision_detector
from tests.zoo.parts import Net, as_after_training, means, wrapped
from tests.zoo.transformers import of_tokens

Change = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def changing(change: Change) -> Any:
    return wrapped(all_positive(), before=change).eval().requires_grad_(False)


def letterboxed(x: Tensor) -> Tensor:
    """(72, 96) → 64 × 64, with 8 rows of padding above and below."""
    return pad(interpolate(x, size=(48, 64), mode="bilinear"), (0, 0, 8, 8))


def resized_and_cropped(x: Tensor) -> Tensor:
    """(72, 96) → 80 × 106, of which the centre, 64 × 64, is cropped."""
    return interpolate(x, size=(80, 106), mode="bilinear")[..., 8:72, 21:85]


CHANGES: dict[str, tuple[Change, tuple[int, int], Box, tuple[bool, bool, bool]]] = {
    "letterbox": (letterboxed, (72, 96), Box(0, -12, 96, 84), (False, False, False)),
    "resize, crop": (
        resized_and_cropped,
        (72, 96),
        Box(21 * 96 / 106, 7.2, 85 * 96 / 106, 64.8),
        (False, False, False),
    ),
    "pad": (lambda x: pad(x, (16, 0, 0, 16)), (64, 64), Box(-16, 0, 64, 80), (False, False, False)),
    "crop": (lambda x: x[..., 24:, 8:72], (88, 96), Box(8, 24, 72, 88), (False, False, False)),
    "crop by an eighth": (
        lambda x: x[..., 8:56, 8:56],  # each of the patches reaches into it
        (64, 64),
        Box(8, 8, 56, 56),
        (False, False, False),
    ),
    "mirror": (lambda x: x.flip(3), (64, 64), Box(0, 0, 64, 64), (False, False, True)),
    "upside down": (lambda x: x.flip(2), (64, 64), Box(0, 0, 64, 64), (False, True, False)),
    "transpose": (lambda x: x.mT, (64, 96), Box(0, 0, 96, 64), (True, False, False)),
    "rotate": (lambda x: x.rot90(1, (2, 3)), (64, 64), Box(0, 0, 64, 64), (True, False, True)),
}


def photo(size: tuple[int, int]) -> Tensor:
    """Noise with a bright square, above and left of the middle."""
    x = 0.1 * torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    x[..., size[0] // 2 - 14 : size[0] // 2, size[1] // 2 - 20 : size[1] // 2 - 6] += 3
    return x


def expected(model: Net, name: str, layer: str, x: Tensor) -> NDArray[np.float32]:
    """The map of the network alone, put where it belongs by hand."""
    change, size, box, (transposed, upside_down, mirrored) = CHANGES[name]
    (inner,) = explain(model.net, change(x), target=1, layer=layer, signed=True)
    upright = inner.map.T if transposed else inner.map
    upright = upright[::-1] if upside_down else upright
    upright = upright[:, ::-1] if mirrored else upright
    return place(np.ascontiguousarray(upright), box, *size)[0]


@pytest.mark.parametrize("layer", ["1", "4"])
@pytest.mark.parametrize("name", CHANGES)
def test_the_map_lies_where_the_model_looks(name: str, layer: str) -> None:
    change, size, box, turned = CHANGES[name]
    model = changing(change)
    x = photo(size)
    (found,) = explain(model, x, target=1, layer=f"net.{layer}", signed=True)
    wanted = expected(model, name, layer, x)
    assert found.placement
    placement = found.placement
    assert (placement.transposed, placement.upside_down, placement.mirrored) == turned
    edges = (placement.box.left, placement.box.top, placement.box.right, placement.box.bottom)
    assert edges == pytest.approx((box.left, box.top, box.right, box.bottom), abs=2)
    assert found.map.shape == size
    correlation = np.corrcoef(found.map.ravel(), wanted.ravel())[0, 1]
    assert correlation > 0.97
    outside = np.ones(size, bool)
    _, region = place(np.ones((2, 2), np.float32), box, *size)
    rows, columns = region.slices
    outside[
        max(rows.start - 2, 0) : rows.stop + 2, max(columns.start - 2, 0) : columns.stop + 2
    ] = False
    assert not found.map[outside].any()


def test_the_place_of_a_layer_does_not_depend_on_what_was_asked_before() -> None:
    x = photo((64, 64))
    asked_alone = changing(lambda x: x.flip(3))
    before = locate(asked_alone, x, ["net.4"])
    assert locate(asked_alone, x).grid("net.4") == before.grid("net.4")
    surveyed = changing(lambda x: x.flip(3))
    surveyed.load_state_dict(asked_alone.state_dict())
    assert default_layer(survey(surveyed, x)) == "net.5"
    assert locate(surveyed, x, ["net.4"]).grid("net.4") == before.grid("net.4")
    assert before.grid("net.4") != Grid("channels first", 8, 8)


def left(x: Tensor) -> Tensor:
    return x[..., : x.shape[-1] // 2]


def right(x: Tensor) -> Tensor:
    return x[..., x.shape[-1] // 2 :]


def mirrored(x: Tensor) -> Tensor:
    return x.flip(3)


CALLS: dict[str, tuple[Callable[[], nn.Module], list[tuple[str, Box, bool]]]] = {
    "halves": (
        lambda: of_parts(all_positive(), left, right),
        [("net.4#1", Box(0, 0, 32, 64), False), ("net.4#2", Box(32, 0, 64, 64), False)],
    ),
    "corners and the centre": (
        lambda: of_parts(
            all_positive(),
            lambda x: x[..., :48, :48],
            lambda x: x[..., :48, 16:],
            lambda x: x[..., 16:, :48],
            lambda x: x[..., 8:56, 8:56],
        ),
        [
            ("net.4#1", Box(0, 0, 48, 48), False),
            ("net.4#2", Box(16, 0, 64, 48), False),
            ("net.4#3", Box(0, 16, 48, 64), False),
            ("net.4#4", Box(8, 8, 56, 56), False),
        ],
    ),
    "the right half mirrored": (
        lambda: of_parts(all_positive(), left, lambda x: mirrored(right(x))),
        [("net.2#1", Box(0, 0, 32, 64), False), ("net.2#2", Box(32, 0, 64, 64), True)],
    ),
    "halves of a mirrored photo": (
        lambda: of_parts(of_parts(all_positive(), left, right), nn.Identity(), mirrored),
        [
            ("net.net.2#2", Box(32, 0, 64, 64), False),
            ("net.net.2#3", Box(32, 0, 64, 64), True),
            ("net.net.2#4", Box(0, 0, 32, 64), True),
        ],
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_a_network_has_the_place_of_the_part_that_it_sees(name: str) -> None:
    make, calls = CALLS[name]
    model = make()
    for layer, box, turned in calls:
        (found,) = explain(model, photo((64, 64)), target=1, layer=layer)
        assert found.placement is not None, layer
        seen = found.placement.box
        np.testing.assert_allclose(
            (seen.left, seen.top, seen.right, seen.bottom),
            (box.left, box.top, box.right, box.bottom),
            atol=2.5,
            err_msg=layer,
        )
        assert found.placement.mirrored == turned, layer


def test_all_calls_are_located_together() -> None:
    """Another call needs no further pass, and the answer depends on no earlier question."""
    model, x = of_parts(all_positive(), left, right), photo((64, 64))
    locate(model, x)
    first = locate(model, x, ["net.4#1"]).grid("net.4#1")
    runs = 0

    def count(module: nn.Module, args: object) -> None:
        nonlocal runs
        runs += 1

    with model.register_forward_pre_hook(count):
        second = locate(model, x, ["net.4#2"]).grid("net.4#2")
        assert not locate(model, x, ["net.4#3"]).found  # there is no third call
        known = runs
        assert not locate(model, x, ["net.4#3"]).found
    assert runs == known
    other = of_parts(all_positive(), left, right)
    assert locate(other, x, ["net.4#2"]).grid("net.4#2") == second
    assert locate(other, x, ["net.4#1"]).grid("net.4#1") == first


def centre(least: int, most: int) -> Change:
    return lambda x: x[..., least:most, least:most]


def two(part: Change) -> nn.Module:
    """A network that sees the image, and one that sees a part of it."""
    return Net(lambda x, a, b: a(x) + b(part(x)), a=all_positive(), b=all_positive())


def behind(part: Change) -> nn.Module:
    early = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1))
    return changed_between(part, early, nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU()), 8)


BRANCHES: dict[str, tuple[Callable[[], nn.Module], int, str, Box]] = {
    "a crop for the second": (lambda: two(centre(16, 80)), 96, "b.4", Box(16, 16, 80, 80)),
    "a small crop": (lambda: two(centre(32, 64)), 96, "b.4", Box(32, 32, 64, 64)),
    "the other one": (lambda: two(centre(16, 80)), 96, "a.4", Box(0, 0, 96, 96)),
    "the left half": (lambda: two(left), 128, "b.4", Box(0, 0, 64, 128)),
    "the right half of the features": (lambda: behind(right), 96, "late", Box(48, 0, 96, 96)),
    "a small crop alone": (lambda: changing(centre(32, 64)), 96, "net.4", Box(32, 32, 64, 64)),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_has_the_place_of_the_part_that_it_sees(name: str) -> None:
    make, side, layer, box = BRANCHES[name]
    (found,) = explain(make(), photo((side, side)), target=1, layer=layer)
    seen = found.placement.box if found.placement else Box(0, 0, side, side)
    np.testing.assert_allclose(
        (seen.left, seen.top, seen.right, seen.bottom),
        (box.left, box.top, box.right, box.bottom),
        atol=8,  # features see a little more than their part
    )


# Changes of features of 32 × 32 positions, each of four pixels.
BETWEEN: dict[str, tuple[Change, Box]] = {
    "nothing": (lambda x: x, Box(0, 0, 128, 128)),
    "a crop": (lambda x: x[..., 3:-3, 3:-3], Box(12, 12, 116, 116)),
    "a crop at the left": (lambda x: x[..., 4:], Box(16, 0, 128, 128)),
    "padding": (lambda x: pad(x, (4, 4, 4, 4)), Box(-16, -16, 144, 144)),
    "padding at the right": (lambda x: pad(x, (0, 6, 0, 0)), Box(0, 0, 152, 128)),
    "a shift": (lambda x: pad(x[..., 4:, 4:], (0, 4, 0, 4)), Box(16, 16, 144, 144)),
    "a resize and a crop": (
        lambda x: interpolate(x, scale_factor=1.25, mode="bilinear")[..., 4:-4, 4:-4],
        Box(12.8, 12.8, 115.2, 115.2),
    ),
    "a stripe": (lambda x: x[..., 10:16, :], Box(0, 40, 128, 64)),
    "a half": (lambda x: x[..., 16:], Box(64, 0, 128, 128)),
}


@pytest.mark.parametrize(
    "name", quick(BETWEEN, ["nothing", "a crop", "padding at the right", "a half"])
)
def test_a_change_of_the_features_moves_all_layers_behind_it(name: str) -> None:
    """Late layers see too much of the image to show it, so features before them are changed."""
    change, box = BETWEEN[name]
    located = locate(deep(change), photo((128, 128)))
    for layer in ("late.0", "late.4", "late.10", "late"):
        grid = located.grid(layer)
        assert grid is not None, layer
        seen = grid.placement.box if grid.placement else Box(0, 0, 128, 128)
        np.testing.assert_allclose(
            (seen.left, seen.top, seen.right, seen.bottom),
            (box.left, box.top, box.right, box.bottom),
            atol=5,  # little more than one position
            err_msg=layer,
        )
    assert located.grid("early") == Grid("channels first", 32, 32)


@pytest.mark.parametrize("count", quick([4, 6], [4]))
def test_stripes_of_the_features_lie_where_they_are_cut(count: int) -> None:
    """As in networks that recognise a person by horizontal stripes."""

    def striped(x: Tensor, early: nn.Module, parts: nn.ModuleList) -> Tensor:
        stripes = zip(parts, early(x).chunk(count, 2), strict=True)
        return torch.stack([means(part(stripe)) for part, stripe in stripes]).sum(0)

    parts = nn.ModuleList(nn.Conv2d(12, 12, 3, 1, 1) for _ in range(count))
    model = Net(striped, early=six_convolutions(3, 2), parts=parts)

    located = locate(model, photo((192, 64)))
    for number in range(count):
        grid = located.grid(f"parts.{number}")
        assert grid
        assert grid.placement
        box = grid.placement.box
        wanted = (0, 192 / count * number, 64, 192 / count * (number + 1))
        np.testing.assert_allclose((box.left, box.top, box.right, box.bottom), wanted, atol=5)


@pytest.mark.parametrize("before", [0, 16])
def test_padding_by_one_token(before: int) -> None:
    """A transformer's patches are placed to half a patch: nothing is rounded in them."""

    net = of_tokens(
        lambda tokens, mix: mix(tokens),
        embed=nn.Conv2d(3, 8, 16, 16),
        mix=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        head=nn.Identity(),
    )
    model = wrapped(net, before=lambda x: pad(x, (before, 16, before, 16))).eval()
    located = locate(model, photo((144, 144)))
    for layer in ("net.embed", "net.mix"):
        grid = located.grid(layer)
        assert grid
        assert grid.placement
        box = grid.placement.box
        edges = (box.left, box.top, box.right, box.bottom)
        assert edges == pytest.approx((-before, -before, 160, 160), abs=4)


@pytest.mark.parametrize("ratio", quick([7, 9], [9]))
def test_a_letterbox_of_a_long_photo(ratio: int) -> None:
    high, wide = 128 // ratio, 128
    rest = (128 - high) // 2
    model = deep()
    model.register_forward_pre_hook(
        lambda _, args: pad(interpolate(args[0], (high, wide)), (0, 0, rest, 128 - high - rest))
    )
    size = (36, 36 * ratio)
    grid = locate(model, photo(size)).grid("late")
    assert grid
    assert grid.placement
    box = grid.placement.box
    top, bottom = -rest / high * 36, (128 - rest) / high * 36
    wanted = (0, top, 36 * ratio, bottom)
    # Little more than one of 32 positions.
    np.testing.assert_allclose((box.left, box.right), wanted[::2], atol=36 * ratio / 25)
    np.testing.assert_allclose((box.top, box.bottom), wanted[1::2], atol=(bottom - top) / 25)


@pytest.mark.parametrize("by", [(16, 16), (0, 32), (24, 0)])
def test_rolled_positions_are_refused(by: tuple[int, int]) -> None:
    model = changing(lambda x: x.roll(by, (2, 3)))
    with pytest.raises(LayerNotSpatial, match="no scale, shift or turn explains"):
        explain(model, photo((64, 64)), layer="net.1")


def brightest(x: Tensor) -> Tensor:
    """The 64 × 64 pixels around what is brightest."""
    sums = avg_pool2d(x.mean(1, keepdim=True), 64, 8)[0, 0]
    row, column = divmod(int(sums.argmax()), sums.shape[1])
    return x[..., 8 * row :, 8 * column :][..., :64, :64]


def mirrored_by_the_photo(x: Tensor) -> Tensor:
    """Mirrored, so that the brighter side of what it crops is on the left."""
    part = x[..., 16:80, 16:80]
    return part.flip(-1) if x[..., 64:].mean() > x[..., :64].mean() else part


@pytest.mark.parametrize("change", [brightest, mirrored_by_the_photo])
def test_a_part_that_depends_on_the_photo_is_refused(change: Change) -> None:
    model, x = changing(change), 0.3 * torch.randn(1, 3, 128, 128)
    x[..., 8:60, 66:126] += 3
    assert model(x).shape == (1, 5)
    for layer in ("net.0", "net.2", "net.5"):
        with pytest.raises(LayerNotSpatial, match="depends on the image"):
            explain(model, x, layer=layer, target=1)


def test_convolutions_without_padding_leave_the_map_as_it_is() -> None:
    """They look at the whole image: their maps are resized to it, as in the papers."""
    model = nn.Sequential(
        *(nn.Conv2d(3, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 5), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    ).eval()
    (found,) = explain(model, photo((64, 64)), layer="4")
    assert found.placement is None
    assert found.map.shape == (26, 26)


def test_windows_in_another_order_are_refused() -> None:
    """Four quarters of the image in the order 3, 0, 1, 2."""

    def shuffled(x: Tensor) -> Tensor:
        (one, two), (three, four) = (row.chunk(2, 3) for row in x.chunk(2, 2))
        return torch.cat([torch.cat([four, one], 3), torch.cat([two, three], 3)], 2)

    with pytest.raises(LayerNotSpatial, match="rolled, repeated or in windows"):
        explain(changing(shuffled), photo((64, 64)), layer="net.1")


def test_a_model_that_turns_its_features_between_two_layers() -> None:
    early = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU())
    model = changed_between(lambda x: x.flip(3), early, nn.Conv2d(8, 8, 3, 2, 1), 8)
    located = locate(model, photo((64, 64)))
    assert located.grid("early.0") == Grid("channels first", 32, 32)
    second = located.grid("late")
    assert second
    assert second.placement
    assert second.placement.mirrored
    assert not second.placement.upside_down


def on_input(small: NDArray[np.float32]) -> NDArray[np.float32]:
    """A map of the mirrored image on the pixels of the image."""
    return place(small, Box(0, 0, 64, 64), 64, 64)[0][:, ::-1]


@pytest.mark.parametrize(
    "method", ["scorecam", "ablationcam", "opticam", "eigencam", "fullgrad", "guidedgradcam"]
)
def test_methods_of_many_passes(method: str) -> None:
    """They look where the model looks: mirrored photos have mirrored maps."""
    plain, mirrored = changing(lambda x: x), changing(lambda x: x.flip(3))
    mirrored.load_state_dict(plain.state_dict())
    x = photo((64, 64))
    ask = {"target": 1, "method": method, "layer": "net.4"}
    (wanted,) = explain(plain, x.flip(3), **ask)  # type: ignore[arg-type]
    (found,) = explain(mirrored, x, **ask)  # type: ignore[arg-type]
    # Opti-CAM's optimisation adds up what rounding does to each of its steps.
    tolerance = (1e-2 if method == "opticam" else 1e-4) * wanted.map.max()
    np.testing.assert_allclose(found.map, on_input(wanted.map), rtol=1e-4, atol=tolerance)


def test_concepts_and_feature_maps_are_upright() -> None:
    plain, mirrored = changing(lambda x: x), changing(lambda x: x.flip(3))
    mirrored.load_state_dict(plain.state_dict())
    x = photo((64, 64))
    (one,) = observe(plain, x.flip(3), ["net.4"], ClassTarget(1))
    (other,) = observe(mirrored, x, ["net.4"], ClassTarget(1))
    assert one.maps is not None
    assert other.maps is not None
    np.testing.assert_allclose(other.maps, one.maps[..., ::-1], atol=1e-6)
    wanted = factorise(plain, x.flip(3), "net.4", 1)[0].map
    found = factorise(mirrored, x, "net.4", 1)[0].map
    np.testing.assert_allclose(found, on_input(wanted), atol=1e-5)


def test_locations_are_dropped_when_the_model_changes() -> None:
    model = changing(lambda x: x)
    x = photo((64, 64))
    assert locate(model, x).grid("net.1") == Grid("channels first", 32, 32)
    model.net.set_submodule("0", nn.Conv2d(3, 8, 3, 4, 1))
    assert locate(model, x).grid("net.1") == Grid("channels first", 16, 16)


def test_views_by_hand() -> None:
    """A crop of the right half, mirrored: column 0 is the image's right edge."""
    view = View(Axis(), Axis(-2, 2))
    assert view.shares(0.25, 1.0) == (0.25, 0.0)
    assert view.shares(0.25, 0.5) == (0.25, 1.0)
    assert view.placement((10, 40)) == Placement(Box(20, 0, 40, 10), 10, 40, mirrored=True)
    turned = view.turned()
    assert len(set(turned)) == 7
    assert View(Axis(-2, 2), Axis(), transposed=True) in turned
    assert View().placement((10, 40)) is None
    # A 2 × 2 map on the right half: the pixels' centres are held at the edges.
    placed = Placement(Box(2, 0, 4, 2), 2, 4).on_input(np.array([[1, 2], [3, 4]], np.float32))
    assert placed.tolist() == [[0, 0, 1, 2], [0, 0, 3, 4]]


@pytest.mark.parametrize(
    ("name", "size", "padded"),
    [
        # 101 × 128 of 128 × 128
        pytest.param("fcos", (150, 190), (190, 190), marks=pytest.mark.slow),
        ("fasterrcnn", (180, 120), (180, 135)),  # 128 × 85 of 128 × 96
    ],
)
def test_detectors_that_resize_the_photo_and_pad_it_to_a_multiple_of_32(
    name: str, size: tuple[int, int], padded: tuple[int, int]
) -> None:
    model, _ = torchvision_detector(name)
    layer = "backbone.body.2"
    height, width = size
    image = interpolate(torch.rand(1, 3, 8, 8), size=size, mode="bicubic")
    (found,) = explain(model, image, layer=layer)
    box = found.placement.box if found.placement else Box(0, 0, width, height)
    np.testing.assert_allclose((box.left, box.top), 0, atol=1.5)
    np.testing.assert_allclose((box.bottom, box.right), padded, atol=1.5)
    # A bright patch changes the cell that lies there: at most one away, as strides round.
    outputs: list[Tensor] = []
    hook = model.get_submodule(layer).register_forward_hook(lambda *args: outputs.append(args[2]))
    places = [(y, x) for y in (0.15, 0.5, 0.85) for x in (0.15, 0.5, 0.85)]
    with torch.no_grad():
        model(image)
        for y, x in places:
            top, left = int(y * height) - 8, int(x * width) - 8
            changed = image.clone()
            changed[..., top : top + 16, left : left + 16] = 2
            model(changed)
    hook.remove()
    before, *after = (each[0] for each in outputs)
    rows, columns = before.shape[1:]
    for (y, x), each in zip(places, after, strict=True):
        row, column = divmod(int((each - before).norm(dim=0).argmax()), columns)
        tall, wide = (box.bottom - box.top) / rows, (box.right - box.left) / columns
        assert abs(box.top + (row + 0.5) * tall - y * height) <= 8 + tall
        assert abs(box.left + (column + 0.5) * wide - x * width) <= 8 + wide


def digits(channels: int, end: type[nn.Module] = nn.ReLU) -> nn.Module:
    """As LeNet, for inputs of which each pixel counts."""
    parts = [
        *(nn.Conv2d(channels, 6, 5, padding=2), end(), nn.AvgPool2d(2)),
        *(
            nn.Conv2d(6, 16, 5, padding=2),
            as_after_training(nn.BatchNorm2d(16)),
            end(),
            nn.MaxPool2d(2),
        ),
        *(nn.Conv2d(16, 32, 3, padding=1), end(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    ]
    return nn.Sequential(*parts, nn.Linear(32, 10)).eval()


@pytest.mark.parametrize("side", quick([28, 32, 34, 36, 40], [28, 34]))
@pytest.mark.parametrize("channels", [1, 3])
def test_small_inputs_are_not_said_to_be_cropped(channels: int, side: int) -> None:
    """Noise in patches of a few pixels moved the centres of the responses, and maps by 30 %."""
    for seed in range(4):
        torch.manual_seed(seed)
        model = digits(channels, nn.ReLU if seed % 2 else nn.Tanh)
        image = 0.05 * torch.rand(1, channels, side, side)
        image[..., 8:24, 14:18] += 1
        (found,) = explain(model, image, target=1)
        assert found.placement is None, (seed, found.placement)


@pytest.mark.parametrize(
    ("change", "box"),
    [
        (lambda x: x[..., 4:32, 4:32], Box(4, 4, 32, 32)),
        (lambda x: pad(x, (4, 4, 4, 4)), Box(-4, -4, 40, 40)),
        (lambda x: pad(x[..., 6:], (2, 0, 3, 0)), Box(4, -3, 36, 36)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_small_inputs_that_are_cropped_or_padded_are_said_to_be(
    channels: int, change: Callable[[Tensor], Tensor], box: Box
) -> None:
    """Within a pixel and a half."""

    torch.manual_seed(2)
    model = wrapped(digits(channels), before=change).eval()
    (found,) = explain(model, torch.rand(1, channels, 36, 36), target=1)
    assert found.placement is not None
    for edge in ("left", "top", "right", "bottom"):
        told = getattr(found.placement.box, edge)
        assert told == pytest.approx(getattr(box, edge), abs=1.5), found.placement
