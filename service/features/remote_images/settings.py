"""The setting of images by address."""

from __future__ import annotations

from pydantic import Field

from service.core.settings import CoreSettings, Names


class RemoteImageSettings(CoreSettings):
    """Where images may come from."""

    image_hosts: Names = Field(
        (),
        description="hosts from which an image may be fetched by its https address; without it, "
        "requests must contain their images",
    )
