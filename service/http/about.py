"""Routes that describe the service: health, metrics, models and their layers."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from starlette.responses import Response

from cam import METHODS
from cam.drift.shift import Shift, TooFew
from service.backend.answers import Drift
from service.backend.interface import NO_MODEL, Backend
from service.backend.work import CompareDrift
from service.core import model_schemas
from service.core.errors import Unavailable
from service.core.metrics import CONTENT_TYPE, Metrics
from service.core.model_schemas import DriftDescription, ShiftDescription, TooFewDescription
from service.http.access import needs
from service.http.contract import answers
from service.models.labels import Labels
from service.pipeline.json_records import describe_input

OF_A_MODEL = (401, 404, 424, 503)
"""Statuses of the errors of routes that describe one model."""
NO_REFERENCE: Final = (
    "the model has no reference to compare its maps with; `gradcam reference` makes one, and "
    "`reference` in the model's entry names it"
)


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
    router.get(
        "/v1/models/{model:model}/drift",
        tags=["models"],
        summary="Whether the maps of a live model have moved",
        description=(
            "Compares the latest maps that the model served with those of its reference, for each "
            "class and for all together. Without a reference (see `gradcam reference`), it only "
            "counts maps."
        ),
        responses=answers(model_schemas.DriftDescription, problems=OF_A_MODEL),
    )(routes.get_drift)
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
        return model_schemas.ModelList(
            models=self._manager.names, detail=None if self._manager.names else NO_MODEL
        )

    @needs("read")
    async def get_model(self, model: str) -> model_schemas.ModelDescription:
        replicas = self._manager.replicas(model)
        served, fidelities = replicas.model, replicas.fidelities
        worst = [fidelities[name].worst for name in fidelities if replicas.is_fast(name)]
        return model_schemas.ModelDescription(
            name=served.name,
            ready=self._manager.model_ready(model),
            source=served.source,
            device=replicas.devices,
            dtype=served.precision,
            kind=served.kind,
            activation=served.activation,
            activation_reason=served.activation_reason,
            input=describe_input(served.preprocessing),
            classes=served.classes,
            labels=list(served.labels.names),
            synonyms=served.labels.synonyms,
            default_layer=served.default_layer,
            levels=list(served.levels) if served.kind == "detections" else None,
            methods=[
                model_schemas.MethodDescription(
                    name=method.name,
                    summary=method.summary,
                    cost=method.cost,
                    budget=method.budget or None,
                    at=method.at,
                    class_specific=method.class_specific,
                    class_dependence=method.class_dependence,
                    signed=method.signed,
                    layer=" + ".join(served.layers_of(method.name))
                    if method.at == "layer" and served.has_layer(method.name)
                    else None,
                    available=method.name not in served.unsuited,
                    reason=served.unsuited.get(method.name),
                    fast=replicas.is_fast(method.name),
                    fidelity=model_schemas.FidelityDescription.model_validate(
                        fidelities[method.name]
                    )
                    if method.name in fidelities
                    else None,
                )
                for method in METHODS.values()
            ],
            mode="fast" if worst else "exact",
            runtime=replicas.runtime,
            fidelity=min(worst, default=None),
            max_batch=served.max_batch,
            batching=served.batching,
            takes_text=served.takes_text,
            audited=None
            if served.audited is None
            else model_schemas.AuditedMethod(
                method=served.audited.method, layer=served.audited.layer
            ),
            fingerprint=served.fingerprint,
        )

    @needs("read")
    async def list_layers(self, model: str) -> model_schemas.LayerList:
        served = self._manager.replicas(model).model
        return model_schemas.LayerList(
            layers=[
                model_schemas.LayerDescription(
                    name=layer.name,
                    type=layer.type,
                    output_shape=None if layer.shape is None else list(layer.shape),
                    grid=layer.grid,
                    explainable=layer.explainable,
                    reason=layer.problem,
                    default=layer.name == served.default_layer,
                )
                for layer in served.layers
            ]
        )

    @needs("read")
    async def get_drift(self, model: str) -> model_schemas.DriftDescription:
        replicas = self._manager.replicas(model)
        drift = (await replicas.ask(CompareDrift())).value
        return describe_drift(drift, replicas.model.labels)


def describe_drift(drift: Drift, labels: Labels) -> DriftDescription:
    """Return the JSON schema object of a drift."""
    comparison = drift.comparison

    def label(index: int | None) -> str | None:
        return None if index is None else labels.name(index)

    def shift(moved: Shift) -> ShiftDescription:
        return ShiftDescription(
            index=moved.index,
            label=label(moved.index),
            statistic=moved.statistic,
            psi=moved.psi,
            distance=moved.distance,
            p=moved.p,
            before=moved.before,
            after=moved.after,
            reference=moved.reference,
            live=moved.live,
            moved=moved.moved,
            unsure=moved.unsure,
            sentence=moved.sentence(label(moved.index)),
        )

    def too_few(few: TooFew) -> TooFewDescription:
        return TooFewDescription(
            index=few.index,
            label=label(few.index),
            statistic=few.statistic,
            reference=few.reference,
            live=few.live,
            sentence=few.sentence(label(few.index)),
        )

    ordered = (
        sorted(comparison.shifts, key=lambda one: (not one.moved, not one.unsure))
        if comparison
        else []
    )
    return DriftDescription(
        model=drift.origin.model,
        method=drift.origin.method,
        layer=drift.origin.layer,
        fit=drift.origin.fit,
        made=drift.made,
        photos=drift.photos,
        recorded=drift.recorded,
        window=drift.size,
        moved=None if comparison is None else comparison.has_moved,
        missing=NO_REFERENCE if comparison is None else comparison.missing,
        unknown=None if comparison is None else comparison.unknown,
        shifts=[shift(one) for one in ordered],
        too_few=[too_few(few) for few in comparison.too_few] if comparison else [],
    )
