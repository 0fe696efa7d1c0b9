"""Weights that would rather run code than be loaded."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import subprocess
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from service.core.errors import ConfigError
from service.loading.served_model import load
from service.models.catalog import ModelEntry
from tests.chaos.finding import Finding


class Call:
    """Unpickling it calls a function."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def malicious(marker: Path) -> dict[str, Callable[[Path], None]]:
    """Name → what writes such a file; each would create `marker`."""
    code = f"open({str(marker)!r}, 'w')"
    calls: dict[str, Any] = {
        "exec": Call(exec, code),
        "eval": Call(eval, code),
        "os.system": Call(os.system, f"touch {marker}"),
        "os.popen": Call(os.popen, f"touch {marker}"),
        "subprocess": Call(subprocess.Popen, ["touch", str(marker)]),
        "open": Call(open, str(marker), "w"),
        "nested": {"weight": torch.ones(1), "more": [{"deep": Call(exec, code)}]},
        "key": {Call(exec, code): torch.ones(1)},
    }
    writers: dict[str, Callable[[Path], None]] = {
        name: partial(torch.save, value) for name, value in calls.items()
    }
    writers["plain pickle"] = partial(_pickled, calls["exec"])
    writers["old format"] = partial(torch.save, calls["exec"], _use_new_zipfile_serialization=False)
    writers["zip with a second pickle"] = partial(_zipped, calls["exec"])
    writers["state dict of a subclass"] = partial(torch.save, {"w": Call(exec, code)})
    return writers


def _pickled(evil: Any, file: Path) -> None:
    file.write_bytes(pickle.dumps(evil))


def _zipped(evil: Any, file: Path) -> None:
    good = io.BytesIO()
    torch.save({"weight": torch.ones(1)}, good)
    with zipfile.ZipFile(good) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, pickle.dumps(evil) if name.endswith("data.pkl") else old.read(name))


async def pickles(scale: float) -> list[Finding]:
    """Each under two suffixes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that a pickle looks odd
        return await asyncio.to_thread(_pickles)


def _pickles() -> list[Finding]:
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder, "it-ran")
        refused = tried = 0
        for name, write in malicious(marker).items():
            for suffix in (".pt", ".safetensors"):
                file = Path(folder, f"{name.replace(' ', '-')}{suffix}")
                write(file)
                marker.unlink(missing_ok=True)  # what making it has left
                tried += 1
                entry = ModelEntry(
                    name="m",
                    source="factory:tests.zoo.factories:tiny",
                    weights=str(file),
                    input_size=8,
                )
                try:
                    load(entry)
                except ConfigError as error:
                    refused += "weights" in str(error) and not marker.exists()
    return [
        Finding(
            f"{tried} malicious pickles as weights",
            "refused with a sentence, no marker file",
            f"{refused} so",
            refused == tried,
        )
    ]
