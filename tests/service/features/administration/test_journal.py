"""What a process that takes the place of the models' process knows of the models."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from service.features.administration.journal import KILLED, NAME, FileJournal
from service.models.catalog import ModelEntry

CONFIGURED = [ModelEntry(name=name, source="timm:resnet18") for name in ("a", "b")]


def added(name: str, **given: object) -> ModelEntry:
    return ModelEntry.model_validate({"name": name, "source": "timm:vit", **given})


def test_what_was_added_and_removed_is_known_to_the_next_process(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    assert journal.configured(CONFIGURED) == CONFIGURED
    assert journal.added() == []
    journal.add(added("c", input_size=[8, 16], prompts=["a cat"]))
    journal.add(added("d"))
    journal.add(added("e").of_file(tmp_path / "models.toml"))
    for name in ("a", "d"):
        journal.remove(name)
    assert stat.S_IMODE((tmp_path / NAME).stat().st_mode) == 0o600
    journal = FileJournal(tmp_path)
    assert journal.configured(CONFIGURED) == CONFIGURED[1:]
    assert [entry.name for entry, _ in journal.added()] == ["c", "e"]
    assert journal.added()[0][0] == added("c", input_size=[8, 16], prompts=["a cat"])
    assert journal.added()[1][0].path("w.pt") == tmp_path / "w.pt"
    journal.add(CONFIGURED[0])  # the removed one again
    journal = FileJournal(tmp_path)
    assert [entry.name for entry, _ in journal.added()] == ["c", "e", "a"]
    assert journal.configured(CONFIGURED) == CONFIGURED[1:]
    journal.remove("a")
    assert FileJournal(tmp_path).configured(CONFIGURED) == CONFIGURED[1:]


def test_a_model_whose_load_ended_the_process_has_failed(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    for name in ("good", "bad", "waits"):
        journal.add(added(name))
    with journal.loading("good"):
        pass
    with journal.loading("bad"):
        for _ in range(2):
            after = FileJournal(tmp_path)
            assert [failure for _, failure in after.added()] == [None, KILLED, None]
    with journal.loading("gone"):  # it was removed while it waited
        pass


def test_a_journal_that_cannot_be_read_or_written_loses_models_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / NAME).write_text("{")
    assert FileJournal(tmp_path).configured(CONFIGURED) == CONFIGURED
    assert "the models that were added or removed are lost" in caplog.text
    journal = FileJournal(tmp_path / "none")
    journal.add(added("c"))
    assert "a process that replaces this one will not know its models" in caplog.text
    assert [entry.name for entry, _ in journal.added()] == ["c"]
