"""The settings of platforms, and what platforms say with variables and arguments of their own.

A platform authenticates callers before their requests reach the container, which therefore needs
no keys. On KServe the container can be reached from the whole cluster, so there it does. The
platform's router chooses the name in `Host`, which is therefore not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

from service.features.administration.settings import AdministrationSettings

Environment = Mapping[str, str]
EXPLAIN: Final = "/v1/models/{model}:explain"
EVERYWHERE: Final = "0.0.0.0"  # noqa: S104 - a container is reached through its platform


def _sagemaker(environment: Environment) -> dict[str, Any]:
    several = environment.get("SAGEMAKER_MULTI_MODEL", "").lower() == "true"
    return {
        "host": EVERYWHERE,
        "port": environment.get("SAGEMAKER_BIND_TO_PORT", "8080"),
        "insecure": True,
        "models": None if several else _filled("/opt/ml/model"),
        "starts_empty": several,
        "routes": {"/ping": "/healthz" if several else "/readyz", "/invocations": EXPLAIN},
    }


def _vertex(environment: Environment) -> dict[str, Any]:
    return {
        "host": EVERYWHERE,
        "port": environment.get("AIP_HTTP_PORT", "8080"),
        "insecure": True,
        "models_uri": environment.get("AIP_STORAGE_URI") or None,
        "routes": {
            environment.get("AIP_HEALTH_ROUTE", "/health"): "/readyz",
            environment.get("AIP_PREDICT_ROUTE", "/predict"): EXPLAIN,
        },
    }


def _azure(environment: Environment) -> dict[str, Any]:
    return {
        "host": EVERYWHERE,
        "port": "5001",
        "insecure": True,
        "models": _filled(environment.get("AZUREML_MODEL_DIR", "")),
        "routes": {"/score": EXPLAIN},
    }


def _kserve(environment: Environment) -> dict[str, Any]:
    return {"host": EVERYWHERE, "port": "8080", "models": _filled("/mnt/models")}


PLATFORMS: Final[Mapping[str, tuple[Callable[[Environment], dict[str, Any]], tuple[str, ...]]]] = {
    "sagemaker": (_sagemaker, ("SAGEMAKER_BIND_TO_PORT", "SAGEMAKER_MULTI_MODEL")),
    "vertex": (_vertex, ("AIP_HTTP_PORT", "AIP_PREDICT_ROUTE")),
    "azure": (_azure, ("AZUREML_MODEL_DIR",)),
    "kserve": (_kserve, ("STORAGE_URI",)),
}
"""Name of a platform → its settings, and the variables that identify it (any one is enough)."""


def _of_platform(environment: Environment, platform: str | None) -> dict[str, Any]:
    """Return the settings that a platform implies.

    Args:
        platform: its name; None finds it by its variables. There are none of an unknown one.
    """
    if platform is None:
        known = (name for name, (_, by) in PLATFORMS.items() if any(map(environment.get, by)))
        platform = next(known, None)
    if platform is None or platform not in PLATFORMS:
        return {}
    implied = {"hosts": "*", **PLATFORMS[platform][0](environment)}
    return {"platform": platform} | {k: v for k, v in implied.items() if v is not None}


def _filled(folder: str) -> Path | None:
    """Return a folder with a file in it; None of any other path."""
    path = Path(folder)
    return path if folder and path.is_dir() and any(path.iterdir()) else None


KSERVE_ARGUMENTS: Final = {
    "model_name": "model_name",
    "http_port": "port",
    "grpc_port": "grpc_port",
    "model_dir": "models",
    "predictor_host": "predictor_host",
    "workers": "doors",
}
"""Argument with which KServe starts a container → the setting that it is."""


def _of_kserve(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the settings that KServe's arguments are, such as `--model_name=birds` or `--http_port
    8080`. Its further arguments are for its own servers, and are left out. There are no settings if
    none of the arguments is KServe's."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    given = {
        word.removeprefix("--"): value for word, value in pairwise(words) if word.startswith("--")
    }
    known = {KSERVE_ARGUMENTS[name]: v for name, v in given.items() if name in KSERVE_ARGUMENTS}
    return {"platform": "kserve", **known} if known else {}


def _routes(given: object) -> object:
    """Return the pairs of a text like `/a=/b,/c=/d`."""
    if not isinstance(given, str):
        return given
    pairs = (part.strip().partition("=") for part in given.split(",") if part.strip())
    return {address: native for address, _, native in pairs}


def _absolute(given: dict[str, str]) -> dict[str, str]:
    for address, native in given.items():
        if not (address.startswith("/") and native.startswith("/")):
            raise PydanticCustomError(
                "route", "a route is like /score=/v1/models/{model}:explain, two paths"
            )
        if unknown := re.search(r"\{[^{}]*\}?|\}", native.replace("{model}", "")):
            raise PydanticCustomError(
                "route",
                "a route may have the field {allowed}, and has {unknown}",
                {"allowed": "{model}", "unknown": unknown[0][:80]},
            )
    return given


Routes = Annotated[dict[str, str], BeforeValidator(_routes), AfterValidator(_absolute)]


class PlatformSettings(AdministrationSettings):
    """Which platform's contract the service follows, and where."""

    models_uri: str | None = Field(
        None,
        description="address of such a folder in a store, like `s3://bucket/model`; fsspec copies "
        "it when the service starts",
    )
    model_name: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="name of the only model, whatever the file says",
    )
    load_folder: Path = Field(
        Path("/opt/ml/models"),
        description="folder from which SageMaker may load models, on an endpoint with several "
        "models",
    )
    platform: Literal["none", "sagemaker", "vertex", "azure", "kserve"] = Field(
        "none",
        description="platform whose contract the service follows; without it, the one whose own "
        "variables are set",
    )
    routes: Routes = Field(
        {},
        description="further addresses of routes, such as `/score=/v1/models/{model}:explain`, "
        "separated by commas; `{model}` is the first model",
    )
    predictor_host: str | None = Field(
        None,
        min_length=1,
        description="host of a predictor with KServe's V1 protocol; it is asked for the class to "
        "explain if a request names none",
    )

    @contextmanager
    def here(self) -> Iterator[Self]:
        with super().here() as settings, ExitStack() as opened:
            if self.models_uri and self.models is None:
                from service.features.platforms.store import copied

                folder = opened.enter_context(copied(self.models_uri))
                settings = settings.model_copy(update={"models": folder})
            yield settings

    def only_name(self) -> str | None:
        return self.model_name

    @classmethod
    def implied(cls, environment: Environment, given: Mapping[str, Any]) -> dict[str, Any]:
        return super().implied(environment, given) | _of_platform(
            environment, given.get("platform")
        )

    @classmethod
    def of_arguments(cls, arguments: Sequence[str]) -> dict[str, Any]:
        return super().of_arguments(arguments) | _of_kserve(arguments)
