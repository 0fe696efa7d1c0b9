"""Adapters of serving platforms' contracts to the routes of the service.

What a platform says with environment variables is in `service.features.platforms.settings`. Azure
ML and KServe need little more than that: their contracts are addresses, and KServe's V1 and V2 are
native.
"""

from __future__ import annotations

from starlette.datastructures import Headers

from service.features.administration.routes import AdministrationRoutes
from service.features.platforms.addresses import PlatformAddresses, native_path
from service.features.platforms.sagemaker import (
    Invocations,
    has_several_models,
    invocation,
    make_sagemaker_router,
)
from service.features.platforms.settings import EXPLAIN, PlatformSettings
from service.features.platforms.vertex import NestExplanations
from service.http.adapter import Added, AppParts


def addresses(parts: AppParts) -> Added | None:
    """Answer the addresses that a platform prescribes."""
    routes, manager = parts.settings_of(PlatformSettings).routes, parts.manager
    if not routes:
        return None
    return Added(
        native=lambda path, headers: native_path(path, routes, manager),
        middleware=[(PlatformAddresses, {"routes": routes, "manager": manager})],
    )


def sagemaker(parts: AppParts) -> Added | None:
    """Answer SageMaker's invocations, and manage the models of its endpoints of several."""
    settings, manager = parts.settings_of(PlatformSettings), parts.manager
    if settings.platform != "sagemaker":
        return None
    several = has_several_models(settings)

    def native(path: str, headers: Headers) -> str | None:
        found = invocation(path, headers, manager, several=several)
        return found[0] if found else None

    router = make_sagemaker_router(
        manager=manager, administration=AdministrationRoutes(parts), settings=settings
    )
    return Added([router], native, [(Invocations, {"manager": manager, "several": several})])


def vertex(parts: AppParts) -> Added | None:
    """Nest explanations in predictions at the addresses at which Vertex AI asks for them."""
    settings = parts.settings_of(PlatformSettings)
    if settings.platform != "vertex":
        return None
    paths = [path for path, native in settings.routes.items() if native == EXPLAIN]
    return Added(middleware=[(NestExplanations, {"path": path}) for path in paths])


def kserve(parts: AppParts) -> Added | None:
    """Ask KServe's predictor for the class to explain, where it is named."""
    settings = parts.settings_of(PlatformSettings)
    if not settings.predictor_host:
        return None
    # It imports an HTTP client, without which other processes start sooner.
    from service.features.platforms.predictor import Predictor

    predictor = Predictor(settings.predictor_host, seconds=settings.deadline_seconds)
    return Added(choose=predictor.choose)
