"""All settings of the service: those of the core, and what each of the features adds."""

from __future__ import annotations

from service.core.settings import CoreSettings
from service.features.administration.settings import AdministrationSettings
from service.features.forwarded.settings import ForwardedSettings
from service.features.jobs.settings import JobSettings
from service.features.keys.settings import KeySettings
from service.features.open_inference.settings import OpenInferenceSettings
from service.features.origins.settings import OriginSettings
from service.features.platforms.settings import PlatformSettings
from service.features.probes.settings import ProbeSettings
from service.features.remote_images.settings import RemoteImageSettings
from service.features.traces.settings import TraceSettings


class Settings(
    ForwardedSettings,
    JobSettings,
    KeySettings,
    OpenInferenceSettings,
    OriginSettings,
    PlatformSettings,
    ProbeSettings,
    RemoteImageSettings,
    TraceSettings,
    AdministrationSettings,
    CoreSettings,
):
    """The operator's settings, which `gradcam serve` reads."""
