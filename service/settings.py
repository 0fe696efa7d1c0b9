"""What an operator may set, read once and passed down."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.errors import ConfigError

PREFIX = "GRADCAM_"


class Settings(BaseModel):
    """Each is an environment variable, GRADCAM_ and the name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    models: Path | None = Field(
        None, description="the TOML file that names the models; without it the embedded one runs"
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
    max_instances: int = Field(32, ge=1, le=1024, description="most images in one request")
    max_queue: int = Field(
        256, ge=1, description="most images waiting for one model; beyond it requests get a 429"
    )
    cache_bytes: int = Field(
        64_000_000,
        ge=0,
        description="of answers to remember for each model, so that another colour or size of the "
        "same map costs no forward pass; 0 remembers none",
    )
    deadline_seconds: float = Field(
        30.0, gt=0, description="longest a request may take, its wait included; then it gets a 504"
    )
    drain_seconds: float = Field(
        20.0, ge=0, description="longest that running requests may take to finish after SIGTERM"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe messages to log"
    )


def read_settings(environment: Mapping[str, str], **given: Any) -> Settings:
    """Settings from GRADCAM_… variables; what is `given` and not None wins.

    Raises:
        ConfigError: naming the variable or option, its value and what is allowed.
    """
    values: dict[str, Any] = {
        key.removeprefix(PREFIX).lower(): value
        for key, value in environment.items()
        if key.startswith(PREFIX)
    }
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        where = f"--{name}" if given.get(name) is not None else PREFIX + name.upper()
        if first["type"] == "extra_forbidden":
            known = [PREFIX + field.upper() for field in Settings.model_fields]
            near = difflib.get_close_matches(where, known, 1) or known
            raise ConfigError(
                f"there is no setting {where}; did you mean {' or '.join(near)}?"
            ) from None
        raise ConfigError(f"{where}={first['input']}: {first['msg'].lower()}") from None
