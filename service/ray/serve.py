"""The same app through Ray Serve, for more than one machine; on one, `gradcam serve` is faster.

    pip install 'gradcam-service[ray]'
    export RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.ray.proxy:gate
    serve run deploy/ray/serve.yaml
    serve run service.ray.serve:build keys=keys.toml models=models.toml max_replicas=4

`build` takes every setting by its name, and what `Scale` has; the rest come from GRADCAM_…
variables where it runs. Each replica builds the app, loads the models and runs the lifespan in a
process of its own. Where Serve listens is Serve's `http_options`; since nothing here knows who can
reach that address, `build` wants keys, or to be told `insecure=true`.

The variable puts `service.ray.proxy` into Serve's proxy, which tells what is not as it is where the
service listens by itself.

What the service remembers, each replica remembers alone: a key's rate counts there, /metrics tells
of one, a model that an admin loads or unloads is so in one. So with more than one replica `build`
refuses allowed sources, and wants to be told of a folder of jobs that all of them share.
"""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
from anyio import to_thread
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import __version__
from service.core.errors import RETRY_AFTER_SECONDS, ConfigError, Unavailable
from service.core.logs import logging_set_up
from service.core.mistakes import mistake
from service.core.settings import Settings, read_settings
from service.core.tracing import tracing
from service.limits.keys import read_keys
from service.models.catalog import ModelEntry, read_catalog

if TYPE_CHECKING:  # it imports torch
    from service.engine.manager import ModelManager
    from service.jobs.host import Jobs

CLOSE_SECONDS = 5.0
"""For the lifespan's end, after the last request's."""
LOOK_SECONDS = 0.5
MOST_FAILED_STARTS = 3
SERVES_OWN = ("host", "port", "supervise")


class Scale(BaseModel):
    """How many replicas there are, and what each holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_replicas: int = Field(1, ge=0)
    max_replicas: int = Field(1, ge=1)
    target_ongoing_requests: float = Field(8.0, gt=0)
    """Of a replica, waiting ones included: with more there will be another one."""
    gpus: Literal["auto"] | float = "auto"
    """For each replica, 0.5 for two on one; auto: one where the cluster has any, else none."""
    cpus: float = Field(1.0, ge=0)
    """That Ray sets aside for each replica. Without GPUs a replica computes with every core that
    it finds, and there is one on a machine."""


def build(arguments: dict[str, Any]) -> serve.Application:
    """The application that `serve run` and `serve deploy` run.

    Raises:
        ConfigError: naming the setting, its value and what is allowed.
    """
    given = dict(arguments)
    scale = _scale({name: given.pop(name) for name in list(given) if name in Scale.model_fields})
    settings = _settings(given, scale)
    entries = read_catalog(settings.models)
    if settings.keys:
        read_keys(settings.keys)  # a mistake in it is told before anything starts
    deployment = serve.deployment(name="gradcam", **options(settings, scale))
    return deployment(serve.ingress()(Replica)).bind(settings, entries)


def options(settings: Settings, scale: Scale) -> dict[str, Any]:
    """Of Serve's deployment, as they follow from the service's own."""
    gpus = _gpus() if scale.gpus == "auto" else scale.gpus
    return {
        "ray_actor_options": {"num_gpus": gpus, "num_cpus": scale.cpus},
        **({} if gpus else {"max_replicas_per_node": 1}),
        "autoscaling_config": scale.model_dump(exclude={"gpus", "cpus"}),
        # So many that a replica's own admission is what turns callers away; Serve's own queue is
        # for the time in which there is no replica, or each has as many as it may.
        "max_ongoing_requests": settings.max_connections,
        "max_queued_requests": settings.max_queue,
        "backpressure_config": {"status_code": 429, "retry_after_s": RETRY_AFTER_SECONDS},
        "graceful_shutdown_timeout_s": settings.drain_seconds + CLOSE_SECONDS,
        "graceful_shutdown_wait_loop_s": LOOK_SECONDS,
        "max_constructor_retry_count": MOST_FAILED_STARTS,
    }


class Replica:
    """One process that serves: Serve builds the app in it, runs its lifespan, asks for its health
    and, once its last request is answered, takes it down."""

    def __init__(self, settings: Settings, entries: tuple[ModelEntry, ...]) -> None:
        self._settings = settings
        self._entries = entries
        self._scope = ExitStack()
        self._settled = False

    def __serve_build_asgi_app__(self) -> FastAPI:
        # They import torch, which whoever builds needs not.
        from service.engine.allocator import keep_memory
        from service.http.app import create_app

        keep_memory()
        self._scope.enter_context(logging_set_up(self._settings))
        if self._settings.traces:
            self._scope.enter_context(tracing(__version__))
        app = create_app(self._settings, self._entries)
        app.add_middleware(Inside)
        self._manager: ModelManager = app.state.manager
        self._jobs: Jobs = app.state.jobs
        return app

    async def check_health(self) -> None:
        """
        Raises:
            ConfigError: if a model could not be loaded, or jobs cannot be kept where the settings
                say; the replica is not started.
            Unavailable: if not ready; the third time in a row Serve replaces the replica.
        """
        from service.http.app import PARSERS

        if self._jobs.failure:
            raise self._jobs.failure
        await asyncio.shield(self._manager.loaded)
        # Serve makes it max_ongoing_requests whenever it configures the replica.
        to_thread.current_default_thread_limiter().total_tokens = PARSERS
        if not self._settled:
            self._settled = True
            gc.collect()
            gc.freeze()  # as service.process.server does, so that no request waits for it
        if not self._manager.ready:
            raise Unavailable(self._manager.why_not_ready(), retry_after=RETRY_AFTER_SECONDS)

    def __del__(self) -> None:
        """Serve's, after the lifespan's end."""
        self._scope.close()


class Inside:
    """Around the app in a replica: paths lose the route's prefix, since rules on paths know the
    plain ones, and answers their X-Request-ID, since the proxy writes the same once more."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))

        async def send_unnamed(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["X-Request-ID"]
            await send(message)

        await self._app({**scope, "root_path": "", "path": path or "/"}, receive, send_unnamed)


def _scale(given: dict[str, Any]) -> Scale:
    try:
        scale = Scale.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{first['loc'][0]}={first['input']}: {mistake(first)}") from None
    if scale.min_replicas > scale.max_replicas:
        raise ConfigError(
            f"min_replicas={scale.min_replicas}: should be at most max_replicas, "
            f"{scale.max_replicas}"
        )
    return scale


def _settings(given: dict[str, Any], scale: Scale) -> Settings:
    for name in SERVES_OWN:
        if name in given:
            raise ConfigError(
                f"{name}={given[name]}: that is Serve's part; where it listens is http_options"
            )
    settings = read_settings(os.environ, **given)
    if settings.keys is None and not settings.insecure:
        raise ConfigError(
            "Serve's proxy may listen where others can reach it, and the service has no keys: "
            "name a file of keys, keys=keys.toml (`gradcam key NAME` writes an entry), or say "
            "insecure=true"
        )
    if settings.allowed_sources and scale.max_replicas > 1:
        raise ConfigError(
            f"allowed_sources={','.join(settings.allowed_sources)}: a model that is loaded while "
            f"the service runs is in one replica alone, and max_replicas is {scale.max_replicas}"
        )
    if scale.max_replicas > 1 and settings.max_jobs and settings.jobs is None:
        raise ConfigError(
            f"max_replicas={scale.max_replicas}: a job that one replica takes is unknown to the "
            "others; name a folder that all share, jobs=FOLDER, and where they are on several "
            "machines jobs_database=URL; or take no jobs, max_jobs=0"
        )
    files = {name: getattr(settings, name) for name in ("keys", "models", "jobs", "inputs")}
    # Replicas run in another folder.
    return settings.model_copy(
        update={name: file and file.resolve() for name, file in files.items()}
    )


def _gpus() -> float:
    """For a replica: of the cluster, or, before there is one, of this machine."""
    if ray.is_initialized():
        return float(ray.cluster_resources().get("GPU", 0) >= 1)
    return float(any(Path("/dev").glob("nvidia[0-9]*")))
