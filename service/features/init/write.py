"""Writing the `models.toml` of a checkpoint, and saying how sure each line of it is."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.status import Status
from rich.table import Table

from service.core.errors import ConfigError
from service.core.files import written_whole
from service.core.settings import CoreSettings
from service.features.init.entry import EntryValue, toml_of
from service.features.init.photos import read_photos
from service.features.init.setup import set_up
from service.local.output import cell, write_file
from service.models.catalog import CATALOG, NAME, read_catalog

FALLBACK: Final = "model"
STYLES: Final = {"sure": "green", "likely": "yellow", "not known": "red"}
PATHS: Final = ("weights",)
"""Keys whose values are paths from the folder of the checkpoint."""


def write(
    checkpoint: Path,
    photos: str | None,
    output: Path | None,
    name: str | None,
    settings: CoreSettings,
    *,
    asks: bool,
) -> None:
    """Find out what a checkpoint is, and write the file with which it is served.

    Args:
        photos: folder of photos; None if there are none.
        output: the file; None for models.toml beside the checkpoint.
        name: name of the model; None for the checkpoint's.
        asks: whether there is somebody to ask.

    Raises:
        ConfigError: if the checkpoint cannot be read, no architecture has its tensors, or the file
            is there already.
    """
    if not checkpoint.exists():
        raise ConfigError(f"there is no {checkpoint}")
    folder = checkpoint.parent
    output = output or folder / CATALOG
    if output.exists():
        raise ConfigError(f"{output} is there already; --output names another file")
    if not output.parent.is_dir():
        raise ConfigError(f"--output={output}: there is no folder {output.parent}")
    if name is not None and not re.fullmatch(NAME, name):
        raise ConfigError(f"--name={name!r}: it has letters, digits, '.', '_' and '-'")
    console = Console()
    seen = read_photos(photos, settings.max_pixels) if photos else None
    with console.status("Looking at the weights") as status:
        done = set_up(checkpoint, seen, partial(_ask, status) if asks else None)
    findings = [_from(output.parent, folder, each) for each in done.findings]
    if done.labels:
        labels = output.parent / next(each.value for each in findings if each.key == "labels")
        text = "\n".join(done.labels) + "\n"
        if labels.exists() and labels.read_text() != text:
            raise ConfigError(f"{labels} is there already, with other labels; rename one of them")
        write_file(labels, text.encode())
    named = name or re.sub("[^A-Za-z0-9._-]+", "-", checkpoint.stem).strip("-._") or FALLBACK
    with written_whole(output) as draft:
        write_file(draft, toml_of(named, findings, checkpoint.name).encode())
        read_catalog(draft)  # what is written can be read, or the reason is told now
    _show(console, findings)
    if done.said:
        console.print(done.said)
    console.print(f"Written: {output}. Next:", style="bold", highlight=False)
    steps = ["explain PHOTO", "serve"]
    if photos:
        steps.insert(1, f"batch {shlex.quote(photos)} --output maps --report report.html")
    for step in steps:
        line = f"  gradcam {step} --models {output}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _ask(status: Status, question: str, proposed: str) -> str:
    status.stop()  # which would move over the question
    answer: str = typer.prompt(question, default=proposed)
    status.start()
    return answer.strip()


def _from(target: Path, folder: Path, finding: EntryValue) -> EntryValue:
    """Return a finding whose paths start at the folder of the file that is written."""
    if finding.key == "source" and str(finding.value).startswith(("hf:", "onnx:", "openvino:")):
        kind, _, path = str(finding.value).partition(":")
        return replace(finding, value=f"{kind}:{_relative(folder / path, target)}")
    if finding.key in PATHS:
        return replace(finding, value=_relative(folder / str(finding.value), target))
    return finding


def _relative(path: Path, target: Path) -> str:
    return Path(os.path.relpath(path.resolve(), target.resolve())).as_posix()


def _show(console: Console, findings: list[EntryValue]) -> None:
    table = Table("key", "value", "", "why", box=None, pad_edge=False)
    for each in findings:
        value = "–" if each.value is None else str(each.value)
        style = STYLES[each.surety]
        table.add_row(
            each.key,
            cell(value, console),
            cell(each.surety, console, style),
            cell(each.why, console),
        )
    console.print(table)
