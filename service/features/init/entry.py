"""An entry of `models.toml`, each key with how it was found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Surety = Literal["sure", "likely", "not known"]


@dataclass(frozen=True)
class EntryValue:
    """The value of one key, and why it has it."""

    key: str
    value: Any
    """None if nothing is written, because the key's default holds."""
    surety: Surety
    why: str
    """Half a sentence."""


def toml_of(name: str, findings: list[EntryValue], made_from: str) -> str:
    """Return an entry as TOML, with a comment above each value."""
    lines = [
        f"# Made by gradcam init from {_text(made_from)}",
        "[[models]]",
        f"name = {_text(name)}",
    ]
    for each in findings:
        lines.append(f"# {each.surety}: {' '.join(each.why.split())}")
        written = f"{each.key} = {_text(each.value)}"
        lines.append(written if each.value is not None else f"# {each.key} is not set")
    return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    """Return a string, a number or a list of them as TOML, which JSON's are, too."""
    return json.dumps(value, ensure_ascii=False)
