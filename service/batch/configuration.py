"""What a batch is asked to do: for all its images the same, and the same again when it goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout
from pydantic import ValidationError

from service.core.errors import ConfigError
from service.core.files import written_whole
from service.pipeline.parameters import Parameters
from service.pipeline.validation import parameter_problem

RECORD: Final = "run.json"
LOCK: Final = ".lock"
FORMATS: Final = {"jpg": "image/jpeg", "png": "image/png", "webp": "image/webp", "none": None}


@dataclass(frozen=True)
class RunConfiguration:
    """
    Args:
        given: parameters as on the command line.
        output: the folder for all that is made.
        form: of the pictures, one of `FORMATS`; "none" draws none.

    Raises:
        Problem: naming the parameter that is wrong.
        ConfigError: naming the form that is.
    """

    given: Mapping[str, Any]
    output: Path
    form: str = "jpg"

    def __post_init__(self) -> None:
        parameters = self.parameters()
        if self.form not in FORMATS:
            raise ConfigError(f"--pictures={self.form}: it should be {', '.join(FORMATS)}")
        if parameters.output == "values" and self.form != "none":
            raise ConfigError(
                "output=values is no picture: take --pictures=none; the manifest has every map's "
                "numbers"
            )

    def parameters(self, target: str | None = None) -> Parameters:
        """Of one image, which may have a target of its own.

        Raises:
            Problem: if the target is none.
        """
        own = {} if target is None else {"target": target}
        try:
            return Parameters.model_validate({**self.given, **own})
        except ValidationError as error:
            raise parameter_problem(error, Parameters) from None

    def open(
        self, source: str, model: str, fingerprint: str, made_with: Mapping[str, Any] | None = None
    ) -> None:
        """Make the output folder; of one that is there, see that it holds the same batch.

        Args:
            source: a folder, a pattern or a file, from the current folder.
            made_with: what else is to be known of the batch as it began; it may change meanwhile.

        Raises:
            ConfigError: if it holds another one, something else, or cannot be written.
        """
        asked = json.loads(self.parameters().model_dump_json(exclude_defaults=True))
        record = {
            "model": model,
            "weights": fingerprint,
            "parameters": asked,
            "form": self.form,
            "source": os.path.abspath(source),  # noqa: PTH100 - a pattern is no path
        }
        file = self.output / RECORD
        try:
            if file.exists():
                self._compare(json.loads(file.read_text()), record)
                return
            if self.output.is_dir() and not {*self.output.iterdir()} <= {*self._leftovers()}:
                raise ConfigError(f"{self.output} is not empty, and no batch has begun there")
            self.output.mkdir(parents=True, exist_ok=True)
            with written_whole(file) as temporary:
                told = {**record, "made_with": {**self._resolved(), **(made_with or {})}}
                temporary.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"{file} is not JSON"
            raise ConfigError(f"{self.output} cannot be used: {reason}") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """While it is open, no other batch works in the output folder.

        Raises:
            ConfigError: if another one does, or the folder cannot be made.
        """
        file = self.output / LOCK
        lock = FileLock(file, timeout=0)
        try:
            made = not self.output.exists()
            self.output.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            raise ConfigError(f"another batch is at work in {self.output}") from None
        except OSError as error:
            raise ConfigError(f"{self.output} cannot be used: {error.strerror}") from None
        try:
            yield
        finally:
            with suppress(OSError):
                file.unlink()  # while it is held: whoever has opened it meanwhile sees that
            lock.release()
            if made:
                with suppress(OSError):
                    self.output.rmdir()  # where no batch began

    def model(self) -> str:
        """That the batch in the output folder is made with."""
        return str(json.loads((self.output / RECORD).read_text())["model"])

    def record(self) -> str:
        """What the batch in the output folder is asked to do, and what it is made with: JSON."""
        return (self.output / RECORD).read_text()

    def _resolved(self) -> dict[str, Any]:
        """The parameters with their defaults, as they are in force."""
        return {"parameters": json.loads(self.parameters().model_dump_json(exclude_none=True))}

    def _leftovers(self) -> Iterator[Path]:
        """Of a batch that was killed as it began."""
        return chain(self.output.glob(f".{RECORD}.*.tmp"), self.output.glob(LOCK))

    def _compare(self, former: Any, record: dict[str, Any]) -> None:
        if not isinstance(former, dict):
            raise ValueError("a record is an object")
        for key, now in record.items():
            if former.get(key) != now:
                raise ConfigError(
                    f"{self.output} holds a batch with {key} {former.get(key)}, and this one has "
                    f"{now}; take another folder, or go on with the former"
                )
