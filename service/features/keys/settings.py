"""The setting of the file of keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from service.core.settings import CoreSettings, Option
from service.features.keys.keys import read_keys


class KeySettings(CoreSettings):
    """Whose requests are let in."""

    keys: Annotated[Path | None, Option("The TOML file of API keys.")] = Field(
        None, description="the TOML file of API keys; without it, everybody may explain"
    )

    def identifies_callers(self) -> bool:
        return self.keys is not None or super().identifies_callers()

    def check_files(self) -> None:
        super().check_files()
        if self.keys is not None:
            read_keys(self.keys)
