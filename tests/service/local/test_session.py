"""A model that works through many images has all of the machine."""

from __future__ import annotations

import asyncio
from itertools import cycle
from pathlib import Path

import pytest
import torch

from service.loading.devices import devices, usable
from service.local.session import MOST_COPIES, local_session
from service.settings import Settings

CORES = min(len(usable()), MOST_COPIES)


def opened(folder: Path, device: str, *, spread: bool = True) -> tuple[list[str], set[bool], int]:
    """Each engine's device, their layouts, how many images are under way at once."""
    catalog = folder / "models.toml"
    catalog.write_text(
        '[[models]]\nname = "tiny"\nsource = "timm:test_resnet"\nweights = "none"\n'
        f"max_batch = 3\n{device}"
    )

    async def look() -> tuple[list[str], set[bool], int]:
        async with local_session(Settings(models=catalog), None, spread=spread) as session:
            models = [engine.model for engine in session.replicas.engines]
            where = [str(model.device) for model in models]
            return where, {model.channels_last for model in models}, session.at_once

    return asyncio.run(look())


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="it is the accelerator's")
def test_copies_share_the_cores_in_one_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = cycle([True, False])  # as two trials on a busy machine may say
    monkeypatch.setattr(
        "service.loading.examination.laid_out", lambda module, image, **_: next(faster)
    )
    assert opened(tmp_path, "") == (["cpu"] * CORES, {True}, 2 * 3 * CORES)


def test_whoever_has_one_image_has_one_copy(tmp_path: Path) -> None:
    assert len(opened(tmp_path, "", spread=False)[0]) == 1


def test_where_it_is_said_it_is_there(tmp_path: Path) -> None:
    where, _, at_once = opened(tmp_path, 'device = "cpu"')
    assert where == ["cpu"]
    assert at_once == 2 * 3


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there are some")
def test_each_accelerator_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def load(entry: object, cache: object) -> object:
        seen.append(entry.device)  # type: ignore[attr-defined]
        raise RuntimeError("it is not there")

    monkeypatch.setattr("torch.accelerator.current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr("torch.accelerator.device_count", lambda: 3)
    monkeypatch.setattr("service.engine.lifecycle.load", load)
    with pytest.raises(RuntimeError, match="not there"):
        opened(tmp_path, "")
    assert devices(MOST_COPIES) == ["cuda:0", "cuda:1", "cuda:2"]
    assert seen == ["cuda:0"]
