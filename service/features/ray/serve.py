"""The app on Ray Serve, for more than one machine; on a single one `gradcam serve` is faster.

    pip install 'gradcam-service[ray]'
    export RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=service.ray.proxy:gate
    serve run deploy/ray/serve.yaml
    serve run service.ray.serve:build keys=keys.toml models=models.toml max_replicas=4

`build` accepts every setting by its name, and the fields of `Scale`; other settings come from the
GRADCAM_… variables of the process that runs it. Each replica builds the app, loads the models and
runs the lifespan in its own process. Serve's `http_options` set the address. `build` does not know
who can reach that address, so it requires keys or `insecure=true`.

The variable installs `service.features.ray.proxy` in Serve's proxy. That module describes the
differences from a service that listens by itself.

Each replica has its own state: it counts a key's rate separately, /metrics describes one replica,
and an admin loads or unloads a model in one replica. Therefore, with more than one replica, `build`
refuses allowed sources, and requires a folder of jobs that all replicas share, unless jobs are off.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
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

from service.core.errors import RETRY_AFTER_SECONDS, ConfigError, Unavailable
from service.core.logs import logging_set_up
from service.core.pydantic_errors import mistake
from service.features import given
from service.models.catalog import ModelEntry, configured
from service.settings import Settings

if TYPE_CHECKING:  # it imports torch
    from service.engine.manager import ModelManager

CLOSE_SECONDS = 5.0
"""Seconds for the end of the lifespan, after the last request."""
LOOK_SECONDS = 0.5
MOST_FAILED_STARTS = 3
SERVES_OWN = ("host", "port", "probe_port", "supervise")


class Scale(BaseModel):
    """The number of replicas, and the resources of each."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_replicas: int = Field(1, ge=0)
    max_replicas: int = Field(1, ge=1)
    target_ongoing_requests: float = Field(8.0, gt=0)
    """Requests of a replica, waiting ones included, above which Serve adds another replica."""
    gpus: Literal["auto"] | float = "auto"
    """GPUs of each replica, 0.5 for two replicas on one GPU; auto: one if the cluster has any."""
    cpus: float = Field(1.0, ge=0)
    """CPUs that Ray reserves for each replica. Without GPUs a replica computes with every core that
    it finds, and each machine has at most one replica."""


def build(arguments: dict[str, Any]) -> serve.Application:
    """Return the application that `serve run` and `serve deploy` run.

    Raises:
        ConfigError: if a setting is wrong; it names the setting, its value and what is allowed.
    """
    given = dict(arguments)
    scale = _scale({name: given.pop(name) for name in list(given) if name in Scale.model_fields})
    settings = _settings(given, scale)
    entries = configured(settings)
    settings.check_files()
    deployment = serve.deployment(name="gradcam", **options(settings, scale))
    return deployment(serve.ingress()(Replica)).bind(settings, entries)


def options(settings: Settings, scale: Scale) -> dict[str, Any]:
    """Return the options of Serve's deployment that follow from the service's settings."""
    gpus = _gpus() if scale.gpus == "auto" else scale.gpus
    return {
        "ray_actor_options": {"num_gpus": gpus, "num_cpus": scale.cpus},
        **({} if gpus else {"max_replicas_per_node": 1}),
        "autoscaling_config": scale.model_dump(exclude={"gpus", "cpus"}),
        # The limit is so high that the replica's own admission refuses requests first. Serve's
        # queue is for times when there is no replica, or each has as many requests as allowed.
        "max_ongoing_requests": settings.max_connections,
        "max_queued_requests": settings.max_queue,
        "backpressure_config": {"status_code": 429, "retry_after_s": RETRY_AFTER_SECONDS},
        "graceful_shutdown_timeout_s": settings.drain_seconds + CLOSE_SECONDS,
        "graceful_shutdown_wait_loop_s": LOOK_SECONDS,
        "max_constructor_retry_count": MOST_FAILED_STARTS,
    }


class Replica:
    """One serving process. Serve builds the app in it, runs the app's lifespan, checks its health,
    and stops it after its last request."""

    def __init__(self, settings: Settings, entries: tuple[ModelEntry, ...]) -> None:
        self._settings = settings
        self._entries = entries
        self._scope = ExitStack()
        self._settled = False

    def __serve_build_asgi_app__(self) -> FastAPI:
        # These import torch, which the process that runs `build` does not need.
        from service.app import create_app
        from service.core.allocator import keep_memory

        keep_memory()
        self._settings.check_files()  # the replica's node may not have them
        self._scope.enter_context(logging_set_up(self._settings))
        for opened in given("around"):
            self._scope.enter_context(opened(self._settings))
        app = create_app(self._settings, self._entries)
        app.add_middleware(Inside)
        self._manager: ModelManager = app.state.manager
        self._mistake_met: Callable[[], ConfigError | None] = app.state.failure
        return app

    async def check_health(self) -> None:
        """Wait until the models have been loaded, and check that the replica is ready.

        Raises:
            ConfigError: if a model could not be loaded, or jobs cannot be kept where the settings
                say; the replica is not started.
            Unavailable: if the replica is not ready; Serve replaces it the third time in a row.
        """
        from service.core.allocator import settle
        from service.http.app import PARSERS

        if mistake := self._mistake_met():
            raise mistake
        await asyncio.shield(self._manager.loaded)
        # Serve sets the limit to max_ongoing_requests whenever it configures the replica.
        to_thread.current_default_thread_limiter().total_tokens = PARSERS
        if not self._settled:
            self._settled = True
            settle()
        if not self._manager.ready:
            raise Unavailable(self._manager.why_not_ready())

    def __del__(self) -> None:
        """Close tracing and logging; Serve calls this after the lifespan's end."""
        self._scope.close()


class Inside:
    """Middleware around the app in a replica. It removes the route's prefix from paths, because
    rules on paths expect none, and the X-Request-ID from answers, because the proxy adds it again.
    """

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

        await self._app({**scope, "path": path or "/"}, receive, send_unnamed)


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
                f"{name}={given[name]}: Ray Serve controls this setting; set the address to "
                "listen on in http_options"
            )
    settings = Settings.read(os.environ, **given)
    if not settings.identifies_callers() and not settings.insecure:
        raise ConfigError(
            "Serve's proxy may listen where others can reach it, and the service has no keys: "
            "name a file of keys, keys=keys.toml (`gradcam key NAME` writes an entry), or say "
            "insecure=true"
        )
    settings.check_replicas(scale.max_replicas)
    # Replicas run in another working directory, so their paths have to be absolute.
    files = {name: value.resolve() for name, value in settings if isinstance(value, Path)}
    return settings.model_copy(update=files)


def _gpus() -> float:
    """Return the GPUs of a replica: 1 if the cluster or, before it exists, this machine has any."""
    if ray.is_initialized():
        return float(ray.cluster_resources().get("GPU", 0) >= 1)
    return float(any(Path("/dev").glob("nvidia[0-9]*")))
