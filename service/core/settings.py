"""The operator's settings that all features share, read once and passed to the parts that need
them."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import platformdirs
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.core.choices import RUNTIMES, WantedRuntime
from service.core.errors import ConfigError
from service.core.pydantic_errors import mistake

PREFIX = "GRADCAM_"
Entry = TypeVar("Entry")
FULL_BATCHES = 3
"""Number of full batches that fit: one is prepared, one waits and one is computed."""


# An environment variable separates the names with commas.
SEPARATED = BeforeValidator(
    lambda given: (
        [part.strip() for part in given.split(",") if part.strip()]
        if isinstance(given, str)
        else given
    )
)
Names = Annotated[tuple[str, ...], SEPARATED]


@dataclass(frozen=True)
class Option:
    """Marks a setting that is an option of `gradcam serve`, too, with the option's help."""

    help: str


class CoreSettings(BaseModel):
    """Settings of what all features share. A feature adds its own in a subclass, and
    `service.settings.Settings` has them all. The environment variable of a setting is GRADCAM_
    and its name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Annotated[str, Option("Address to listen on.")] = Field(
        "127.0.0.1", description="address to listen on"
    )
    port: Annotated[int, Option("Port to listen on; 0 takes a free one.")] = Field(
        8000, ge=0, le=65535, description="port to listen on; 0 takes a free one"
    )
    models: Annotated[
        Path | None, Option("The TOML file that names the models; else the embedded one.")
    ] = Field(
        None,
        description="the TOML file that names the models, or a folder that holds either such a "
        "file, named `models.toml`, or one model; without it, the embedded model runs",
    )
    max_body_bytes: int = Field(
        10_000_000, ge=1, description="largest request body, counted while it streams in"
    )
    max_pixels: int = Field(
        50_000_000,
        ge=1,
        le=89_000_000,
        description="largest image, checked before its pixels are read",
    )
    max_instances: int = Field(
        32, ge=1, le=1024, description="largest number of images in one request"
    )
    runtime: WantedRuntime = Field(
        "auto",
        description="runtime of the models whose entries name none: "
        f"{', '.join(f'`{name}`' for name in RUNTIMES)}, or `auto`, the fastest installed one",
    )
    max_queue: int = Field(
        1024,
        ge=1,
        description="largest number of images in progress for one model, including waiting ones; "
        "at most half of them for costly methods; above this limit requests get a 429. Unless it "
        "is set, three full batches on each of the model's devices always fit",
    )
    target_seconds: float = Field(
        2.0,
        gt=0,
        description="longest time for which a request should wait for its answer: if as many "
        "requests are in progress as a model answers in this time, further ones get a 429. If a "
        "single request takes the model longer, 1.5 times its time is allowed",
    )
    delay_tolerance: float | None = Field(
        None,
        ge=0,
        description="replaces GRADCAM_TARGET_SECONDS: how long a request may take, as a multiple "
        "of the time that it takes alone; 0: only GRADCAM_MAX_QUEUE limits requests",
    )
    max_bodies_bytes: int = Field(
        250_000_000,
        ge=1,
        description="largest number of bytes in memory for all request bodies (of a body that goes "
        "to the disk, the parts that are not there yet) and for the numbers and pictures of "
        "answers; above this limit requests get a 503",
    )
    pixel_budget: int = Field(
        100_000_000,
        ge=1,
        description="largest number of pixels of all photos in memory, from decoding to drawing, "
        "at some 30 bytes each; further photos wait. Unless it is set, photos of 640 × 480 pixels "
        "for three full batches of a model always fit",
    )
    max_connections: int = Field(
        1000, ge=1, description="largest number of connections at a time; further ones get a 503"
    )
    receive_seconds: float = Field(
        10.0,
        gt=0,
        description="longest time to receive a request; a body that arrives at 64 kB/s or more "
        "may take longer",
    )
    send_seconds: float = Field(
        30.0, gt=0, description="longest time for which a client may read nothing of its answer"
    )
    cache_bytes: int = Field(
        64_000_000,
        ge=0,
        description="size of each model's cache of answers in bytes; a cached map needs no "
        "forward pass for another colour or size; 0: no cache",
    )
    cache: Path | None = Field(
        None,
        description="folder that keeps converted networks and findings about models for the next "
        "start, at most 2 GB; without it, `gradcam` in the user's cache folder; `off`: nothing is "
        "kept",
    )
    deadline_seconds: float = Field(
        30.0,
        gt=0,
        description="longest time that a request may take, including its wait; then it gets a 504. "
        "The header X-Request-Timeout may shorten it",
    )
    hang_seconds: float = Field(
        60.0,
        gt=0,
        description="longest time that a model's forward pass may take; then its worker is "
        "abandoned and replaced",
    )
    drain_seconds: float = Field(
        20.0, ge=0, description="longest time for running requests to finish after SIGTERM"
    )
    insecure: Annotated[bool, Option("Listen where others can reach it, without keys.")] = Field(
        False, description="listen on an address that others can reach, without keys"
    )
    supervise: bool = Field(
        True, description="serve in a separate process, which is replaced when it dies"
    )
    doors: Annotated[
        int | None,
        Option("Processes that receive requests; 0: the models' own process does."),
    ] = Field(
        None,
        ge=0,
        le=64,
        description="number of processes that receive requests, decode and draw, in addition to "
        "the process of the models; 0: the process of the models does this work, too. Default: "
        "one, or more on a machine with more than 8 cores or an accelerator",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="lowest severity of messages to log"
    )
    log_format: Literal["auto", "json", "console"] = Field(
        "auto", description="format of log lines; auto: JSON, except in a terminal"
    )

    def fitting(self, name: str, batch: int) -> int:
        """Return the number of images that fit even if the limit `name` is smaller; 0 if the limit
        was set.

        Args:
            batch: number of images in a full batch of a model.
        """
        return 0 if name in self.model_fields_set else FULL_BATCHES * batch

    def identifies_callers(self) -> bool:
        """Return whether a feature identifies the callers. If not, everybody may explain and nobody
        may administrate, and others may reach the service only if it is `insecure`."""
        return False

    def check_files(self) -> None:
        """Raise ConfigError if a file that a feature follows has a mistake."""

    def other_ports(self) -> tuple[int, ...]:
        """Return the ports that features open beside the service's own.

        Raises:
            ConfigError: if what serves one of them is not installed.
        """
        return ()

    @contextmanager
    def here(self) -> Iterator[Self]:
        """Yield the settings with the models on this machine, as long as the block is open.

        Raises:
            ConfigError: if they cannot be copied.
        """
        yield self

    def only_name(self) -> str | None:
        """Return the name of the only model, whatever its entry says; None changes no name."""
        return None

    def started(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return the models with which the service starts, of those that are configured."""
        return entries

    def check_replicas(self, count: int) -> None:
        """Check that several replicas can share what the service keeps.

        Raises:
            ConfigError: if they cannot.
        """

    @classmethod
    def options(cls) -> dict[str, str]:
        """Return the settings that are options of `gradcam serve`, each with its help."""
        marks = [(name, mark) for name, one in cls.model_fields.items() for mark in one.metadata]
        return {name: mark.help for name, mark in marks if isinstance(mark, Option)}

    @classmethod
    def implied(cls, environment: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings that variables of others imply, by the settings that are given. Those
        that are given take precedence."""
        return {}

    @classmethod
    def of_arguments(cls, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the settings that further arguments of `gradcam serve`, which are not its options,
        stand for; none if they are unknown."""
        return {}

    @classmethod
    def read(cls, environment: Mapping[str, str], **given: Any) -> Self:
        """Read the settings from GRADCAM_… variables. Values in `given` take precedence if they are
        not None.

        Raises:
            ConfigError: if a value is not allowed. The message names the variable or option, its
                value and what is allowed.
        """
        values: dict[str, Any] = {
            key.removeprefix(PREFIX).lower(): value
            for key, value in environment.items()
            if key.startswith(PREFIX)
        }
        values |= {name: value for name, value in given.items() if value is not None}
        implied = cls.implied(environment, values)
        # A platform also implies what belongs to features that may not be there.
        values = {name: implied[name] for name in implied if name in cls.model_fields} | values
        values.setdefault("cache", platformdirs.user_cache_path("gradcam", False))
        if str(values["cache"]) == "off":
            values["cache"] = None
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            where = (
                f"--{name.replace('_', '-')}"
                if given.get(name) is not None
                else PREFIX + name.upper()
            )
            if first["type"] == "extra_forbidden":
                known = [PREFIX + field.upper() for field in cls.model_fields]
                near = difflib.get_close_matches(where, known, 1) or known
                raise ConfigError(
                    f"there is no setting {where}; did you mean {' or '.join(near)}?"
                ) from None
            raise ConfigError(f"{where}={first['input']}: {mistake(first)}") from None
