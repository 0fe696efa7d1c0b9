"""How far a batch is."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from service.features.batch import progress
from service.features.batch.inputs import Inputs
from service.features.batch.parts import Parts
from service.features.batch.progress import Tally, begun, shown
from service.features.tables.rows import Row


def test_what_is_left_and_what_is_done(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add([Row(id="a"), Row(id="b", error="no"), Row(id="gone", error="no")])
    inputs = Inputs(["c", "b", "a"], lambda name: b"")
    left, tally = begun(inputs, parts, retry_failed=False)
    assert (left, tally) == (["c"], Tally(total=3, done=2, failed=1))
    left, tally = begun(inputs, parts, retry_failed=True)
    assert (left, tally) == (["c", "b"], Tally(total=3, done=1, failed=0))
    assert begun(inputs, Parts(tmp_path / "new"), retry_failed=True)[1] == Tally(total=3)


def test_what_the_table_names_another_target_for_is_left(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    parts.add([Row(id="a", asked="1"), Row(id="b"), Row(id="gone", asked="1")])
    inputs = Inputs(["a", "b"], lambda name: b"", {"a": "1"})
    assert begun(inputs, parts, retry_failed=False) == ([], Tally(total=2, done=2))
    inputs = Inputs(["a", "b"], lambda name: b"", {"b": "1"})
    assert begun(inputs, parts, retry_failed=False) == (["a", "b"], Tally(total=2))
    assert parts.finished() == {"gone"}


def test_a_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(progress, "monotonic", lambda: now)
    text, tally = StringIO(), Tally(total=100, done=20)
    with shown(tally, Console(file=text, force_terminal=False)) as show:
        now += 29
        tally.done = 30
        show()
        assert text.getvalue() == ""
        now += 1
        tally.done = 50
        show()  # thirty images in thirty seconds
        assert text.getvalue() == "50 of 100, 1.0 images/s, 50 s left\n"
        now += 29
        show()
        tally.done, tally.failed = 80, 2
        now += 1
        show()  # sixty in sixty
    assert text.getvalue().splitlines()[1:] == ["80 of 100, 1.0 images/s, 20 s left, 2 failed"]


def test_a_terminal_has_a_bar() -> None:
    text, tally = StringIO(), Tally(total=4)
    with shown(tally, Console(file=text, force_terminal=True, width=120)) as show:
        tally.done, tally.failed = 3, 1
        show()
    assert "3/4" in text.getvalue()
    assert "1 failed" in text.getvalue()
    assert "images/s" in text.getvalue()
