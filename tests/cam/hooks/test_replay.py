"""What ran before a layer is stored for one image and stands for several, wherever its batch is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cam import Replay, explain
from tests.zoo.convolutional import arranged
from tests.zoo.parts import images

# (B, 4, 8, 8) to the shape that the stored module returns, and back to (B, 4, 8, 8).
Arrangement = tuple[Callable[[Any], Tensor], Callable[[Any], Tensor]]
ARRANGED: dict[str, Arrangement] = {
    "windows of one image together": (
        lambda x: x.unflatten(2, (2, 4)).transpose(1, 2).flatten(0, 1),
        lambda x: x.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2, 3),
    ),
    "windows of all images together": (
        lambda x: x.unflatten(2, (2, 4)).permute(2, 0, 1, 3, 4).flatten(0, 1),
        lambda x: x.unflatten(0, (2, -1)).permute(1, 2, 0, 3, 4).flatten(2, 3),
    ),
    "tokens first": (
        lambda x: x.flatten(2).permute(2, 0, 1),
        lambda x: x.permute(1, 2, 0).unflatten(2, (8, 8)),
    ),
    "channels and images joined": (
        lambda x: x.flatten(0, 1)[None],
        lambda x: x[0].unflatten(0, (-1, 4)),
    ),
}


@pytest.mark.parametrize("name", ARRANGED)
def test_a_replay_of_several_is_that_of_each(name: str) -> None:
    model, image = arranged(*ARRANGED[name]), images(1)
    replay = Replay(model, "layer", image)
    changed = torch.randn(5, 4, 8, 8)
    alone = torch.cat([Replay(model, "layer", image).output(each[None]) for each in changed])
    torch.testing.assert_close(replay.output(changed), alone)
    assert (alone[1:] - alone[:1]).abs().min() > 1e-5


def test_the_modules_in_front_run_once_more_to_show_their_arrangement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = arranged(*ARRANGED["windows of one image together"])
    replay = Replay(model, "layer", images(1))
    batches: list[int] = []
    original = nn.Tanh.forward

    def counted(module: nn.Tanh, windows: Tensor) -> Tensor:
        batches.append(len(windows))
        return original(module, windows)

    monkeypatch.setattr(nn.Tanh, "forward", counted)
    for _ in range(3):
        replay.output(torch.randn(5, 4, 8, 8))
    assert batches == [4]  # two windows of each of two images


def test_a_model_of_one_image_is_replayed_one_by_one() -> None:
    """It takes one image at a time until its layer has run."""
    put, back = ARRANGED["windows of one image together"]

    def single(x: Tensor) -> Tensor:
        assert len(x) == 1
        return put(x)

    model = arranged(single, back)
    changed = torch.randn(3, 4, 8, 8)
    replay = Replay(model, "layer", images(1))
    alone = torch.cat([replay.output(each[None]) for each in changed])
    torch.testing.assert_close(replay.output(changed), alone)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ablationcam", "reciprocam"])
def test_methods_that_replay_explain_a_swin_transformer(method: str) -> None:
    """At a layer within a block, by whose weights the map is known."""
    from transformers import SwinConfig, SwinForImageClassification

    torch.manual_seed(0)
    sizes = {"image_size": 32, "embed_dim": 8, "depths": [2], "num_heads": [2], "window_size": 4}
    model = SwinForImageClassification(
        SwinConfig(**sizes, num_labels=3, initializer_range=0.5)
    ).eval()
    layer = "swin.encoder.layers.0.blocks.1.layernorm_after"
    image = images(1, size=32)
    (found,) = explain(model, image, target=1, method=method, layer=layer, signed=False)
    replay = Replay(model, layer, image)
    assert replay.activation.shape == (1, 64, 8)
    score = replay.output(replay.activation).logits[0, 1]
    changed = replay.activation.repeat(8, 1, 1)
    for channel in range(8):
        changed[channel, :, channel] = 0
    without = torch.stack([replay.output(each[None]).logits[0, 1] for each in changed])
    assert (score - without).abs().max() > 1e-5
    if method == "ablationcam":
        weights = (score - without) / score
        expected = (replay.activation[0] @ weights).relu().reshape(8, 8)
        torch.testing.assert_close(torch.tensor(found.map), expected.detach(), rtol=1e-3, atol=1e-4)
    assert found.map.max() > 0
