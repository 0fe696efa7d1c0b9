"""Packages of other people, as if they were installed in a folder that is on the path."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]


def paste(folder: Path, page: str, heading: str) -> None:
    """Write the files that a section of a page shows: blocks whose first line is a file's name."""
    text = (ROOT / "docs" / page).read_text()
    section = text.partition(f"{heading}\n")[2].partition("\n## ")[0]
    for name, content in re.findall(r"```\w+\n# (\S+)\n(.*?)```", section, re.DOTALL):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)


def install_example(folder: Path, page: str, heading: str) -> None:
    """Install the package of a section's example, without its dependencies."""
    paste(folder, page, heading)
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    for group, points in project["entry-points"].items():
        install(folder, group, points, group.replace(".", "-"), project["version"])


def install(
    folder: Path, group: str, points: Mapping[str, str], name: str = "added", version: str = "1.0"
) -> None:
    """Say that a package is installed in a folder, with entry points: name → object."""
    about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (about / "entry_points.txt").write_text(f"[{group}]\n{lines}")
