"""The ends of a network's stages, found by the names and the grids of its layers."""

from __future__ import annotations

from dataclasses import replace

from service.models.info import LayerInfo, ModelInfo
from tests.service.rpc.fake import info


def network(default: str | None, *layers: tuple[str, int]) -> ModelInfo:
    found = tuple(
        LayerInfo(name, "Module", (8, side, side), None, (side, side)) for name, side in layers
    )
    return replace(info(), layers=found, default_layer=default)


def test_stages_end_with_the_outermost_block_of_each_resolution() -> None:
    model = network(
        "norm",
        ("stem", 112),  # no block, so no stage
        ("blocks.0.0.conv", 56),
        ("blocks.0.0", 56),
        ("blocks.0", 56),
        ("blocks.1.0.conv", 56),  # before the part of its block that halves the resolution
        ("blocks.1.0", 28),
        ("blocks.1", 28),
        ("blocks.2.0.conv", 28),
        ("blocks.2.0", 28),
        ("blocks.2", 28),  # the last one of its resolution
        ("blocks.3.0.conv", 14),
        ("blocks.3", 14),
        ("norm", 14),  # the default layer stands for its own resolution
    )
    assert model.stages == ("blocks.0", "blocks.2", "norm")
    assert replace(model, default_layer=None).stages == ("blocks.0", "blocks.2", "blocks.3")


def test_stages_of_a_network_without_blocks_are_its_last_layers() -> None:
    model = network(
        "conv5", ("conv1", 32), ("conv2", 32), ("conv3", 16), ("conv4", 8), ("conv5", 8)
    )
    assert model.stages == ("conv2", "conv3", "conv5")
    last = replace(model.layers[2], problem="it has no gradient")
    refused = replace(model, layers=(*model.layers[:2], last, *model.layers[3:]))
    assert refused.stages == ("conv2", "conv5")


def test_a_model_without_layers_has_no_stages() -> None:
    assert replace(info(), layers=(), default_layer=None).stages == ()
