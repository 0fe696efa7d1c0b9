"""The setting of the Open Inference Protocol."""

from __future__ import annotations

from importlib.util import find_spec

from pydantic import Field

from cam.errors import to_install
from service.core.errors import ConfigError
from service.core.settings import CoreSettings


class OpenInferenceSettings(CoreSettings):
    """The port of gRPC."""

    grpc_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="port on which the Open Inference Protocol is served over gRPC; 0: none",
    )

    def other_ports(self) -> tuple[int, ...]:
        ports = super().other_ports()
        if not self.grpc_port:
            return ports
        if find_spec("grpc") is None or find_spec("google.protobuf") is None:
            raise ConfigError(f"GRADCAM_GRPC_PORT needs packages of its own; {to_install('grpc')}")
        return (*ports, self.grpc_port)
