"""`gradcam batch` in this process and in one of its own, and photos for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from service.cli.main import main
from tests.service.conftest import noise
from tests.service.live import ROOT

MODEL = """
[[models]]
name = "{name}"
source = "factory:{source}"
weights = "none"
input_size = 8
layout = "contiguous"
max_batch = {max_batch}
{more}
"""


def catalog(folder: Path, name: str = "tiny", max_batch: int = 16) -> str:
    """A file that names one small model: "tiny", "steady" or "stuck_once"."""
    file = folder / f"{name}.toml"
    # Those that are made to be slow or stuck are counted: there is one of them.
    more = 'kind = "classes"\n' + ("" if name == "tiny" else 'device = "cpu"')
    source = f"tests.zoo.factories:{name}"
    file.write_text(MODEL.format(name=name, source=source, max_batch=max_batch, more=more))
    return str(file)


def small_photos(folder: Path, count: int, size: int = 32) -> Path:
    folder.mkdir()
    for seed in range(count):
        noise(size, size, seed).save(folder / f"{seed:03}.png")
    return folder


def rows(output: Path) -> list[dict[str, Any]]:
    """The manifest's, in the order of their images and numbers."""
    found: list[dict[str, Any]] = pq.read_table(output / "manifest.parquet").to_pylist()
    return sorted(found, key=lambda row: (row["id"], row["number"]))


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "service", "batch", *arguments],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if name != "FORCE_COLOR"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs inherit that they are deaf to it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


class Shell:
    """Types `gradcam batch` lines."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture
        patch.setenv("COLUMNS", "200")

    def __call__(self, *arguments: object) -> tuple[int, str]:
        """The exit code, and what was said."""
        self._patch.setattr("sys.argv", ["gradcam", "batch", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, self._capture.readouterr().err


def upright_size(file: Path) -> tuple[int, int]:
    with Image.open(file) as image:
        turned = image.getexif().get(0x0112, 1) >= 5
        return (image.height, image.width) if turned else image.size
