"""Methods that other packages add."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cam import METHODS
from cam.errors import MethodUnsuited
from cam.methods import Method
from cam.methods.method import Formula
from cam.passes.maps import apply
from tests.packages import install

SAID = """
import json, warnings
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from cam.methods import METHODS
print(json.dumps([list(METHODS), [str(each.message) for each in told]]))
"""
GOOD = 'Method("mine", "s", "one backward", "weights", "nowhere:f")'


def known(folder: Path, **objects: str) -> tuple[list[str], list[str]]:
    """The names of all methods, and the warnings, with a package whose entry points are these
    objects."""
    (folder / "added.py").write_text(
        "from cam.methods import Method\n"
        + "".join(f"{name} = {value}\n" for name, value in objects.items())
    )
    install(folder, "gradcam.methods", {name: f"added:{name}" for name in [*objects, "gone"]})
    answer = subprocess.run(
        [sys.executable, "-c", SAID],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    names, told = json.loads(answer.stdout)
    return names, told


def test_a_good_one_is_listed_last_and_what_cannot_be_used_is_told(tmp_path: Path) -> None:
    named = GOOD.replace("mine", "{}").format
    names, told = known(
        tmp_path,
        good=GOOD,
        twin=GOOD,
        built_in=named("gradcam"),
        reserved=named("auto"),
        odd=named("../x"),
        text="'gradcam'",
        levels=named("deep")[:-1] + ', levels="stages")',
    )
    assert names == [*METHODS, "mine"]
    assert told == [
        f"the method added:{name} is left out: {why}"
        for name, why in (
            ("built_in", "the name 'gradcam' is taken"),
            ("gone", "AttributeError: module 'added' has no attribute 'gone'"),
            ("levels", "levels and fusion belong together"),
            ("odd", "its name '../x' does not match [a-z][a-z0-9+_-]{0,63}"),
            ("reserved", "the name 'auto' is taken"),
            ("text", "it is a str, not a cam.methods.Method"),
            ("twin", "the name 'mine' is taken"),
        )
    ]


@pytest.mark.parametrize(
    ("formula", "shape", "allowed"),
    [
        ("weights", (2, 3), r"\(2, 3, 4, 5\) or \(2, 3, 1, 1\)"),
        ("weights", (2, 1, 4, 5), r"\(2, 3, 4, 5\) or \(2, 3, 1, 1\)"),
        ("map", (2, 3, 4, 5), r"\(2, 4, 5\)"),
    ],
)
def test_a_function_that_returns_another_shape_is_told(
    formula: Formula, shape: tuple[int, ...], allowed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Method(
        "mine",
        "s",
        "one backward",
        formula,
        lambda a, g: torch.zeros(shape),
    )
    monkeypatch.setitem(METHODS, "mine", mine)
    a = torch.zeros(2, 3, 4, 5)
    with pytest.raises(MethodUnsuited, match=f"'mine' returned .*must return {allowed}"):
        apply("mine", a, a)
