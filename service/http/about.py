"""Routes that describe the service: health, metrics, models and their layers."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cam import METHODS
from service.backend.interface import NO_MODEL, Backend
from service.core import model_schemas
from service.core.errors import Problem, Unavailable
from service.core.metrics import CONTENT_TYPE, Metrics
from service.http.access import needs
from service.http.contract import answers
from service.pipeline.json_records import describe_input

PROBES = ("/healthz", "/readyz", "/metrics")
"""Routes that monitoring asks every few seconds."""
OF_A_MODEL = (401, 404, 424, 503)
"""Statuses of the errors of routes that describe one model."""


def make_about_router(*, manager: Backend, metrics: Metrics) -> APIRouter:
    router, routes = APIRouter(), AboutRoutes(manager, metrics)
    router.get(
        "/healthz",
        tags=["operations"],
        summary="Whether the process is alive",
        responses=answers(model_schemas.Health),
    )(routes.check_health)
    router.head("/healthz", include_in_schema=False)(routes.check_health)
    router.get(
        "/readyz",
        tags=["operations"],
        summary="Whether it can explain: models warm, workers alive, not draining",
        responses=answers(model_schemas.Health, problems=[503]),
    )(routes.check_readiness)
    router.head("/readyz", include_in_schema=False)(routes.check_readiness)
    router.get(
        "/metrics",
        tags=["operations"],
        summary="Metrics for Prometheus",
        response_class=Response,
        responses=answers(
            forms={"text/plain": 'gradcam_queue_depth{model="efficientnet-lite0"} 0.0\n'}
        ),
    )(routes.get_metrics)
    router.get(
        "/v1/models",
        tags=["models"],
        summary="The models' names",
        responses=answers(model_schemas.ModelList),
        response_model_exclude_none=True,
    )(routes.list_models)
    router.get(
        "/v1/models/{model:model}",
        tags=["models"],
        summary="One model: its input, classes, default layer and methods",
        responses=answers(model_schemas.ModelDescription, problems=OF_A_MODEL),
    )(routes.get_model)
    router.get(
        "/v1/models/{model:model}/layers",
        tags=["models"],
        summary="The model's layers in execution order, and which can be explained",
        response_model_exclude_none=True,
        responses=answers(model_schemas.LayerList, problems=OF_A_MODEL),
    )(routes.list_layers)
    return router


class AboutRoutes:
    """The routes that describe the service, with the backend and the metrics that they show.

    FastAPI shows the docstrings of such methods to callers, so they have none: the table above says
    what each answers.
    """

    def __init__(self, manager: Backend, metrics: Metrics) -> None:
        self._manager = manager
        self._metrics = metrics

    @needs("open")
    async def check_health(self) -> model_schemas.Health:
        return model_schemas.Health(status="ok")

    @needs("open")
    async def check_readiness(self) -> model_schemas.Health:
        if not self._manager.ready:
            raise Unavailable(self._manager.why_not_ready())
        return model_schemas.Health(status="ok")

    @needs("read")
    async def get_metrics(self) -> Response:
        self._manager.measure()
        return Response(self._metrics.render(self._manager.names), media_type=CONTENT_TYPE)

    @needs("read")
    async def list_models(self) -> model_schemas.ModelList:
        names = self._manager.names
        return model_schemas.ModelList(
            models=names,
            takes_text=[name for name in names if self._takes_text(name)] or None,
            detail=None if names else NO_MODEL,
        )

    def _takes_text(self, name: str) -> bool:
        try:
            return self._manager.replicas(name).model.takes_text
        except Problem:  # it is not loaded
            return False

    @needs("read")
    async def get_model(self, model: str) -> model_schemas.ModelDescription:
        replicas = self._manager.replicas(model)
        served, fidelities = replicas.model, replicas.fidelities
        worst = [fidelities[name].worst for name in fidelities if replicas.is_fast(name)]
        return model_schemas.ModelDescription(
            **vars(served.info)
            | {
                "labels": served.labels.names,
                "levels": served.levels if served.kind == "detections" else None,
            },
            ready=self._manager.model_ready(model),
            device=replicas.devices,
            dtype=served.precision,
            input=describe_input(served.preprocessing),
            synonyms=served.labels.synonyms,
            methods=[
                model_schemas.MethodDescription(
                    **vars(method)
                    | {
                        "budget": method.budget or None,
                        "paper": method.paper or None,
                        "fidelity": fidelities.get(method.name),
                    },
                    class_specific=method.class_specific,
                    layer=" + ".join(served.layers_of(method.name))
                    if method.at == "layer" and served.has_layer(method.name)
                    else None,
                    available=method.name not in served.unsuited,
                    reason=served.unsuited.get(method.name),
                    fast=replicas.is_fast(method.name),
                )
                for method in METHODS.values()
            ],
            mode="fast" if worst else "exact",
            runtime=replicas.runtime,
            fidelity=min(worst, default=None),
        )

    @needs("read")
    async def list_layers(self, model: str) -> model_schemas.LayerList:
        served = self._manager.replicas(model).model
        stages = set(served.stages)
        return model_schemas.LayerList(
            layers=[
                model_schemas.LayerDescription(
                    **vars(layer),
                    output_shape=None if layer.shape is None else list(layer.shape),
                    explainable=layer.explainable,
                    reason=layer.problem,
                    default=layer.name == served.default_layer,
                    stage=layer.name in stages,
                )
                for layer in served.layers
            ]
        )
