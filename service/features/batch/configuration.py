"""The configuration of a batch, which applies to all images and is the same after a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from filelock import FileLock, Timeout

from service.core.choices import Fit
from service.core.errors import ConfigError
from service.core.files import written_whole
from service.features.batch.inputs import Inputs, open_inputs
from service.pipeline.parameters import Parameters
from service.pipeline.rendering import PICTURES
from service.pipeline.validation import validated

RECORD: Final = "run.json"
LOCK: Final = ".lock"
FORMATS: Final[dict[str, str | None]] = {
    **dict(sorted((form.name, media_type) for media_type, form in PICTURES.items())),
    "none": None,
}
"""Format of a batch's pictures → media type."""


@dataclass(frozen=True)
class RunConfiguration:
    """The configuration of a batch.

    Args:
        given: parameters as given on the command line.
        output: the folder for all files of the batch.
        form: format of the pictures, one of `FORMATS`; "none" draws no pictures.
        kind: what the folder holds: a batch, or an audit.

    Raises:
        Problem: if a parameter is invalid; the message names it.
        ConfigError: if the format is unknown or does not fit the parameters.
    """

    given: Mapping[str, Any]
    output: Path
    form: str = "jpg"
    kind: Literal["batch", "audit"] = "batch"

    def __post_init__(self) -> None:
        parameters = self.parameters()
        if self.form not in FORMATS:
            raise ConfigError(f"--pictures={self.form}: it should be {', '.join(FORMATS)}")
        if parameters.output == "values" and self.form != "none":
            raise ConfigError(
                "output=values is not a picture: take --pictures=none; the manifest has every "
                "map's numbers"
            )

    def parameters(self, target: str | None = None) -> Parameters:
        """Return the parameters of one image.

        Args:
            target: the image's own target, if it has one.

        Raises:
            Problem: if the target is invalid.
        """
        own = {} if target is None else {"target": target}
        return validated(Parameters, {**self.given, **own})

    def fitted(self, default: Fit) -> RunConfiguration:
        """Return the configuration with the fit by its own name, where it says `auto`: the fit of
        the batch that the output folder holds, so that it goes on as it began, or the model's.

        Args:
            default: what `auto` means for the model.
        """
        if self.parameters().fit != "auto":
            return self
        fit: str = default
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            there = json.loads((self.output / RECORD).read_text())
            fit = _parameters_in(there)["fit"]
        return replace(self, given={**self.given, "fit": fit})

    def open(
        self,
        source: str,
        model: str,
        fingerprint: str,
        made_with: Mapping[str, Any] | None = None,
        *,
        photos: int | None = None,
    ) -> None:
        """Create the output folder with its record; if it exists, check that it holds the same
        batch.

        Args:
            source: a folder, a pattern or a file, relative to the current folder.
            made_with: further facts about the start of the batch. They are recorded but not
                compared.
            photos: number of photos, if the results of one photo depend on it.

        Raises:
            ConfigError: if the folder holds another batch or other files, or cannot be written.
        """
        asked = json.loads(self.parameters().model_dump_json(exclude_defaults=True))
        asked.setdefault("fit", "auto")
        record = {
            **({} if self.kind == "batch" else {"kind": self.kind}),
            "model": model,
            "weights": fingerprint,
            "parameters": asked,
            "form": self.form,
            **({} if photos is None else {"photos": photos}),
            "source": os.path.abspath(source),  # noqa: PTH100 - a pattern is not a path
        }
        file = self.output / RECORD
        try:
            if file.exists():
                self._compare(json.loads(file.read_text()), record)
                return
            if self.output.is_dir() and not {*self.output.iterdir()} <= {*self._leftovers()}:
                raise ConfigError(f"{self.output} is not empty, and no {self.kind} has begun there")
            self.output.mkdir(parents=True, exist_ok=True)
            with written_whole(file) as temporary:
                resolved = json.loads(self.parameters().model_dump_json(exclude_none=True))
                told = {**record, "made_with": {"parameters": resolved, **(made_with or {})}}
                temporary.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"{file} is not JSON"
            raise ConfigError(f"{self.output} cannot be used: {reason}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the output folder against other batches while the block runs.

        Raises:
            ConfigError: if another batch uses the folder, or the folder cannot be created.
        """
        file = self.output / LOCK
        lock = FileLock(file, timeout=0)
        try:
            made = not self.output.exists()
            self.output.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise ConfigError(f"another {self.kind} is at work in {self.output}") from None
        except OSError as error:
            raise ConfigError(f"{self.output} cannot be used: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()  # before the release: a process that opened it notices the removal
            lock.release()
            if made:
                with suppress(OSError):
                    self.output.rmdir()  # succeeds only if no batch began there

    def model(self) -> str:
        """Return the name of the model of the batch in the output folder."""
        return str(json.loads((self.output / RECORD).read_text())["model"])

    def begun(self) -> dict[str, Any] | None:
        """Return the numbers of photos and the methods of the audit in the output folder; None if
        none has begun there.

        Raises:
            ConfigError: if its record cannot be read.
        """
        file = self.output / RECORD
        if not file.exists():
            return None
        try:
            record = json.loads(file.read_text())
            named = record["parameters"].get("method", [])
            methods = [named] if isinstance(named, str) else list(named)
            return {"photos": int(record["photos"]), "methods": methods}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ConfigError(f"{file} is not the record of an audit") from None

    def record(self) -> str:
        """Return the record of the batch in the output folder, in JSON: its configuration, and what
        it is made with."""
        return (self.output / RECORD).read_text()

    def _leftovers(self) -> Iterator[Path]:
        """Yield the files that a batch leaves in the output folder if it is killed at its start."""
        return chain(self.output.glob(f".{RECORD}.*.tmp"), self.output.glob(LOCK))

    def _compare(self, former: Any, record: dict[str, Any]) -> None:
        if not isinstance(former, dict):
            raise ValueError("a record is an object")
        if former.get("kind", "batch") != self.kind:
            there = former.get("kind", "batch")
            raise ConfigError(f"{self.output} holds a {there}; take another folder")
        former = {**former, "parameters": _parameters_in(former)}
        for key, now in record.items():
            if former.get(key) != now:
                raise ConfigError(
                    f"{self.output} holds a{'n' * (self.kind == 'audit')} {self.kind} with {key} "
                    f"{former.get(key)}, and this one has {now}; take another folder, or go on "
                    "with the former"
                )


def _parameters_in(record: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of a record. Without a fit it is of a version in which the default was
    `crop`, and defaults were left out."""
    return {"fit": "crop", **record.get("parameters", {})}


@contextmanager
def source_of(output: Path) -> Iterator[Inputs | None]:
    """Open the images of the batch in the folder `output`, as its run.json names them; None if
    there is no such record, or the images are not there any more."""
    with ExitStack() as scope:
        inputs = None
        with suppress(OSError, ValueError, KeyError, TypeError, ConfigError):
            source = json.loads((output / RECORD).read_text(encoding="utf-8"))["source"]
            inputs = scope.enter_context(open_inputs(str(source), output))
        yield inputs
