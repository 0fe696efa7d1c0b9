"""The setting of the port for probes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from service.core.errors import ConfigError
from service.core.settings import CoreSettings, Option


class ProbeSettings(CoreSettings):
    """Where probes are answered at any load."""

    probe_port: Annotated[int, Option("Port on which the supervisor answers probes; 0: none.")] = (
        Field(
            0,
            ge=0,
            le=65535,
            description="port on which the supervisor answers `/healthz`, `/readyz` and `/metrics` "
            "without a key, at any load; 0: none",
        )
    )

    def other_ports(self) -> tuple[int, ...]:
        # The port itself is not among them: connections to it are the supervisor's.
        if self.probe_port and not self.supervise:
            raise ConfigError(
                f"a port for probes, {self.probe_port}, needs a supervisor: "
                "set GRADCAM_SUPERVISE=1, or GRADCAM_PROBE_PORT=0"
            )
        return super().other_ports()
