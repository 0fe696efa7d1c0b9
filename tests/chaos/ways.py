"""Every way in: an address or a call, the form of its bodies, and the scope that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from tests.chaos import bodies, messages
from tests.chaos.bodies import Form

Place = Literal["service", "vertex", "several models"]
Scope = Literal["open", "read", "explain", "admin"]
CALM: Final = "/v1/models/calm"
V2: Final = "/v2/models/calm/infer"


@dataclass(frozen=True)
class Way:
    name: str
    path: str
    """Path of HTTP, or the name of a call of gRPC."""
    form: Form
    scope: Scope = "explain"
    """Scope of the key that it needs; any key has `read`."""
    place: Place = "service"
    """Service that has it: an ordinary one, which also has addresses of platforms."""
    is_grpc: bool = field(default=False, kw_only=True)


def _call(name: str, form: Form, scope: Scope = "explain") -> Way:
    return Way(f"gRPC {name}", name, form, scope, is_grpc=True)


def ways() -> Sequence[Way]:
    explain = bodies.native("target", "top_k", "opacity", "method", "layer")
    return (
        Way("`:explain` JSON", f"{CALM}:explain", explain),
        Way("`:explain` form", f"{CALM}:explain", bodies.multipart("target", "top_k", "opacity")),
        Way("`:explain` image", f"{CALM}:explain", bodies.raw()),
        Way("`:predict` JSON", f"{CALM}:predict", bodies.native("top_k")),
        Way("`:predict` form", f"{CALM}:predict", bodies.multipart("top_k")),
        Way("`:evaluate` JSON", f"{CALM}:evaluate", bodies.native("target", "metrics")),
        Way("`:activations` JSON", f"{CALM}:activations", bodies.native("layer")),
        Way("`POST /v1/jobs` JSON", "/v1/jobs", bodies.job()),
        Way("`POST /v1/jobs` lines", "/v1/jobs?model=calm", bodies.lines()),
        Way("`POST /v1/jobs` form", "/v1/jobs", bodies.multipart("target", "model")),
        Way("`POST /v1/jobs` zip", "/v1/jobs?model=calm", bodies.archive()),
        Way("`POST /v1/audits` JSON", "/v1/audits", bodies.job()),
        Way("`POST /v1/models`", "/v1/models", bodies.entry(), "admin"),
        Way("V2 infer JSON", V2, bodies.inference()),
        Way("V2 infer binary", V2, bodies.binary()),
        Way("V2 index", "/v2/repository/index", bodies.json_form("{}", '{"ready":@}'), "read"),
        Way(
            "V2 load",
            "/v2/repository/models/calm/load",
            bodies.json_form("{}", '{"parameters":@}', '{"parameters":{"config":@}}'),
            "admin",
        ),
        _call("ModelInfer", messages.infer()),
        _call("ModelStreamInfer", messages.infer()),
        _call("RepositoryModelLoad", messages.load(), "admin"),
        _call("RepositoryIndex", messages.empty(), "read"),
        _call("ServerLive", messages.empty(), "open"),
        Way("SageMaker `/invocations` JSON", "/invocations", explain),
        Way("SageMaker `/invocations` image", "/invocations", bodies.raw()),
        Way("Azure `/score` JSON", "/score", explain),
        Way("Vertex `/predict` JSON", "/predict", explain, place="vertex"),
        Way("SageMaker `POST /models`", "/models", bodies.folder(), "admin", "several models"),
        Way(
            "SageMaker `/models/x/invoke`",
            "/models/x/invoke",
            explain,
            "explain",
            "several models",
        ),
    )
