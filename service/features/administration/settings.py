"""The settings of models that are added while the service runs."""

from __future__ import annotations

from pydantic import Field

from service.core.errors import ConfigError
from service.core.settings import CoreSettings, Entry, Names


class AdministrationSettings(CoreSettings):
    """Which models may be added, and how many."""

    starts_empty: bool = Field(
        False, description="start without a model; the platform loads models later"
    )
    allowed_sources: Names = Field(
        (),
        description="patterns of sources that an admin may load while the service runs, like "
        "`torchvision:resnet*`; none: no model can be added",
    )
    max_models: int = Field(
        16, ge=1, description="largest number of models at a time, including added ones"
    )

    def started(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        return () if self.starts_empty else super().started(entries)

    def check_replicas(self, count: int) -> None:
        super().check_replicas(count)
        if self.allowed_sources and count > 1:
            raise ConfigError(
                f"allowed_sources={','.join(self.allowed_sources)}: a model that is loaded while "
                f"the service runs is in one replica alone, and max_replicas is {count}"
            )
