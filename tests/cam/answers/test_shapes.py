"""The embedded vision–language model, of whose words the places are known."""

from __future__ import annotations

import pytest

from bench.train_shapes import figures, loaded
from service.sources.embedded.build import FOLDER


@pytest.mark.slow
def test_nouns_are_pointed_at_and_planted_words_are_flagged() -> None:
    found = figures(loaded(FOLDER), scenes=40, seed=2, methods=["tam", "attention"])
    assert found["right"] >= 0.9
    assert found["pointing tam"] >= 0.9
    assert found["energy tam"] > 1.3 * found["energy attention"]
    assert found["precision"] >= 0.9
    assert found["recall"] >= 0.9


def test_the_checkpoint_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 5_000_000
    loaded(FOLDER).check()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_the_folder_is_whole(name: str) -> None:
    assert (FOLDER / name).is_file()
