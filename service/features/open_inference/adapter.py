"""The Open Inference Protocol (V2), as Triton, KServe, MLServer and Seldon speak it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Final

from service.features.administration.routes import AdministrationRoutes
from service.features.open_inference.inference import Inference
from service.features.open_inference.routes import (
    OpenInferenceRoutes,
    Repository,
    make_open_inference_router,
)
from service.features.open_inference.settings import OpenInferenceSettings
from service.features.open_inference.statistics import AnswerCounts
from service.http.adapter import Added, AppParts
from service.http.guard import Guard

PROBES: Final = ("/v2/health/live", "/v2/health/ready")


def v2(parts: AppParts) -> Added:
    """Add the routes below `/v2`, and gRPC at a port of its own where the settings name one."""
    manager, settings = parts.manager, parts.settings_of(OpenInferenceSettings)
    inference = Inference(parts.reception, parts.pipeline, manager)
    repository = Repository(manager, AdministrationRoutes(parts), parts.entries)
    statistics = AnswerCounts(manager, parts.metrics)

    def grpc(guard: Guard) -> AbstractAsyncContextManager[None]:
        # Its packages are an extra; `OpenInferenceSettings` says so where they are missing.
        from service.features.open_inference.grpc_server import Calls, serving_grpc

        calls = Calls(
            inference=inference,
            repository=repository,
            statistics=statistics,
            manager=manager,
            guard=guard,
            body_budget=parts.body_budget,
            metrics=parts.metrics,
            settings=settings,
        )
        return serving_grpc(calls, settings, parts.counts.processes)

    routes = OpenInferenceRoutes(inference, parts.reception, manager, statistics)
    router = make_open_inference_router(routes, repository)
    return Added(
        [router],
        running=grpc if settings.grpc_port else None,
        probes=PROBES,
        plain=("/v2",),
    )
