"""The kinds of sources, and those that other packages add."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cam.methods.method import load
from service.models.sources import PATTERN, SOURCES
from tests.packages import ROOT, install, paste
from tests.service.conftest import encoded, noise

ADDED = """
from service.models.sources import Source
NOT = dict(told="nothing", build="my_models.zoo:check", check="my_models.zoo:check")
TAKEN = Source(name="timm", **NOT)
WRONG = Source(name="wrong", what="(", **NOT)
EMPTY = Source(name="empty", told="`empty:x`", build="builtins:print", check="builtins:print")
"""


@pytest.mark.parametrize("name", list(SOURCES))
def test_what_a_source_names_is_there(name: str) -> None:
    source = SOURCES[name]
    assert callable(load(source.build))
    assert callable(load(source.check))
    assert f"`{name}:" in source.told


@pytest.mark.parametrize(
    "text", ["timm:a/b", "timm:", "hf:", "hf:a\nb", "factory:module", "tim:a", "timm", "xtimm:a"]
)
def test_what_no_source_takes(text: str) -> None:
    assert not re.search(PATTERN, text)


@pytest.mark.slow
def test_a_model_of_a_users_source_is_explained(tmp_path: Path) -> None:
    paste(tmp_path, "configuration.md", "### A source of your own")
    (tmp_path / "added.py").write_text(ADDED)
    points = {name: f"added:{name}" for name in ("EMPTY", "TAKEN", "WRONG")}
    install(tmp_path, "gradcam.sources", {**points, "zoo": "my_models:ZOO"})
    (tmp_path / "photo.png").write_bytes(encoded(noise(64, 64, 0)))

    def explained(source: str, more: str = "") -> subprocess.CompletedProcess[str]:
        entry = f'[[models]]\nname = "m"\nsource = "{source}"\n{more}'
        (tmp_path / "models.toml").write_text(entry)
        return subprocess.run(
            [sys.executable, "-m", "service", "explain", "photo.png", "--models", "models.toml"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
        )

    done = explained("zoo:wide")
    assert done.returncode == 0, done.stderr
    assert re.search(r"cat|dog", done.stdout)
    assert (tmp_path / "explanations").is_dir()
    assert "source TAKEN" not in done.stderr
    assert "the source added:TAKEN is left out: the name 'timm' is taken" in done.stderr
    assert "the source added:WRONG is left out: its `what` is not a regular" in done.stderr
    for source, more, sentence in (
        ("zoo:tall", "", "key 'source': the zoo has no 'tall'; it has wide and deep"),
        ("zu:wide", "", "'zoo:NAME', a network of the zoo"),
        ("zoo:wide", 'prompts = ["a cat", "a dog"]', "key 'prompts': prompts are the classes of"),
        ("empty:x", "", "key 'source': the source built a NoneType, not a service.loading.sources"),
    ):
        refused = explained(source, more)
        assert refused.returncode == 2
        assert sentence in refused.stderr
