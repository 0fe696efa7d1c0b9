"""All settings of the service. Each line is what one of its features adds."""

from __future__ import annotations

from service.features.administration.settings import AdministrationSettings
from service.features.jobs.settings import JobSettings
from service.features.open_inference.settings import OpenInferenceSettings
from service.features.platforms.settings import PlatformSettings


class Settings(
    JobSettings,
    OpenInferenceSettings,
    PlatformSettings,
    AdministrationSettings,
):
    """The operator's settings, which `gradcam serve` reads."""
