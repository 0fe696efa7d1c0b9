"""Files to find, and what there is to be found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.core.errors import ConfigError
from service.features.batch.inputs import open_inputs

NOBODY = 65534


def lay(folder: Path, *names: str) -> Path:
    """Files that hold their own names."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(file.name.encode())
    return folder


def ids(source: Path | str, besides: Path | None = None) -> list[str]:
    """What there is; each can be read and holds its own name."""
    with open_inputs(str(source), besides) as found:
        for name in found.ids:
            assert found.read(name).decode() == name.rpartition("/")[2]
        assert not found.targets
        return found.ids


def refused(source: Path | str, besides: Path | None = None) -> str:
    with pytest.raises(ConfigError) as error, open_inputs(str(source), besides):
        pass
    assert "\n" not in str(error.value)
    return str(error.value)


@contextmanager
def readable_by_nobody() -> Iterator[Path]:
    """A folder that whoever is nobody may enter; as root a file's mode would say nothing."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@contextmanager
def as_nobody() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
