"""Every entry of models.toml is checked before the first model is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.core.errors import ConfigError
from service.core.metrics import Metrics
from service.engine.manager import ModelManager
from service.models.catalog import read_catalog
from service.settings import Settings

built: list[str] = []

FIRST = f"""
[[models]]
name = "first"
source = "factory:{__name__}:first"

[[models]]
name = "second"
"""
TINY = 'source = "factory:tests.zoo.factories:tiny"\n'


def first() -> None:
    built.append("first")
    raise AssertionError("the first model was built before the second was checked")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("second", "words"),
    [
        ('source = "torchvision:resnet17"', "'source': torchvision has no model.*resnet18"),
        ('source = "timm:nothing"', "'source': timm has no model"),
        ('source = "embedded:nothing"', "'source': there is no embedded model"),
        ('source = "factory:tests.zoo.factories:none"', "'source': module .* has no 'none'"),
        ('source = "hf:a/b/c"', "'source': there is no folder .*a/b/c"),
        (TINY + 'weights = "none.pt"', "'weights': .*none.pt: it cannot be read: No such file"),
        (TINY + 'weights = "w.onnx"', "'weights': .*w.onnx: its name must end in .safetensors"),
        (TINY + 'labels = "none.txt"', "'labels': .*none.txt cannot be read"),
        (TINY + 'audit = "none.json"', "'audit': .*none.json cannot be read"),
        (TINY + 'reference = "none.json"', "'reference': .*none.json cannot be read"),
        (TINY + 'device = "cuda:63"', "'device': 'cuda:63' is not on this machine"),
        (TINY + 'reshape = "grid 14 14"', "'reshape': a reshape is 'tokens HEIGHT WIDTH PREFIX'"),
        (TINY + 'method_layers = {gradcan = "x"}', "'method_layers': there is no method 'gradcan'"),
    ],
)
async def test_a_second_entry_that_cannot_be_right_stops_the_start_at_once(
    tmp_path: Path, second: str, words: str
) -> None:
    (tmp_path / "models.toml").write_text(FIRST + second)
    entries = read_catalog(tmp_path / "models.toml")
    async with ModelManager(entries, settings=Settings(), metrics=Metrics()) as manager:
        with pytest.raises(ConfigError, match=f"model 'second': key {words}"):
            await manager.loaded
    assert built == []
