"""Images by address, as they are added to the app."""

from __future__ import annotations

from service.features.remote_images.settings import RemoteImageSettings
from service.http.adapter import Added, AppParts


def remote_images(parts: AppParts) -> Added | None:
    """Fetch the images that requests and jobs name, if the operator allows any hosts."""
    settings = parts.settings_of(RemoteImageSettings)
    if not settings.image_hosts:
        return None
    # It imports an HTTP client, without which a process starts a fifth of a second earlier.
    from service.features.remote_images.fetch import Fetcher

    fetcher = Fetcher(hosts=settings.image_hosts, max_bytes=settings.max_body_bytes)
    return Added(running=lambda guard: fetcher, fetch=fetcher.fetch)
