"""A copy of the packages, from which a test deletes some: what is left has to be whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[1]


def copied(folder: Path) -> Path:
    """Copy to a folder what the linters and the service read."""
    for path in ("service", "cam", "pyproject.toml", "README.md"):
        copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy2
        copy(ROOT / path, folder / path)
    return folder


def types_of_all(cache: Path) -> Path:
    """Let mypy check the packages as they are, into a new cache; what `make types` has left spares
    most of it."""
    if (known := ROOT / ".mypy_cache").exists():
        shutil.copytree(known, cache)
    run(ROOT, "mypy", f"--cache-dir={cache}", "service", "cam")
    return cache


def check(tree: Path, types: Path) -> None:
    """Run the linters and mypy, which begins with the types of the packages as they are: from those
    of another deletion it would check more of them anew."""
    run(tree, "ruff", "check", "service", "cam")
    run(tree, "lint-imports", "--no-cache")
    cache = tree / ".mypy_cache"
    shutil.copytree(types, cache)
    run(tree, "mypy", f"--cache-dir={cache}", "service", "cam")
    shutil.rmtree(cache)


def run(where: Path, tool: str, *arguments: str, code: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [Path(sys.executable).with_name(tool), *arguments],
        cwd=where,
        env={**os.environ, "PYTHONPATH": str(where), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def unlisted(text: str, gone: Collection[str]) -> str:
    """Return pyproject.toml without the layers, and the modules in contracts, that are gone."""

    def left(line: re.Match[str]) -> str:
        kept = [name for name in line[1].split(" | ") if name not in gone]
        return f'    "{" | ".join(kept)}",\n' if kept else ""

    own, mark, of_cam = text.partition('name = "A package of cam')
    text = re.sub(r'    "(\w[\w |]*)",\n', left, own) + mark + of_cam
    text = re.sub(rf'    "service\.({"|".join(gone)})",\n', "", text)
    return re.sub(rf'    "service\.features\.({"|".join(gone)})\..*",\n', "", text)
