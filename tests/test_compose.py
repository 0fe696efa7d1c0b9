"""deploy/compose starts the service beside what watches it: what a file names, another one has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

FOLDER = Path(__file__).parent.parent / "deploy" / "compose"
DOCKERFILE = (FOLDER.parent.parent / "Dockerfile").read_text(encoding="utf-8")


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = read("compose.yaml")["services"]
    return found


def mounts(service: dict[str, Any]) -> dict[str, Path]:
    """Path in the container → file of the repository."""
    pairs = [each.split(":")[:2] for each in service["volumes"]]
    return {inside: FOLDER / outside for outside, inside in pairs if outside.startswith(".")}


@pytest.mark.slow
def test_compose_accepts_it() -> None:
    compose = str(Path(sys.executable).with_name("docker-compose"))
    command = [compose, "--file", str(FOLDER / "compose.yaml")]
    subprocess.run([*command, "config", "--quiet"], check=True, timeout=60)


def test_the_service_starts_with_these_settings(services: dict[str, dict[str, Any]]) -> None:
    environment = services["gradcam"]["environment"]
    settings = Settings.read({"GRADCAM_HOST": "0.0.0.0", **environment})
    assert settings.insecure
    assert settings.hosts == ("gradcam",)
    database = re.sub(r"\$\{.*?:-(.*?)\}", r"\1", settings.jobs_database or "")
    assert database == "postgresql+psycopg://gradcam:gradcam@postgres/gradcam"
    assert settings.drain_seconds < int(services["gradcam"]["stop_grace_period"].rstrip("s"))
    assert "jobs:/jobs" in services["gradcam"]["volumes"]
    assert "ln --symbolic /jobs /var/lib/gradcam/jobs" in DOCKERFILE
    assert "XDG_STATE_HOME=/var/lib" in DOCKERFILE


def test_ports_are_published_to_this_machine_only(services: dict[str, dict[str, Any]]) -> None:
    published = {name: each.get("ports", []) for name, each in services.items()}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)
    exposed = re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[0].split()
    assert published["gradcam"] == [f"127.0.0.1:{exposed[0]}:{exposed[0]}"]
    assert published["postgres"] == []


def test_mounted_files_and_volumes_are_there(services: dict[str, dict[str, Any]]) -> None:
    volumes = read("compose.yaml")["volumes"]
    for service in services.values():
        assert [path for path in mounts(service).values() if not path.is_file()] == []
        named = {each.partition(":")[0] for each in service["volumes"]}
        assert {name for name in named if not name.startswith(".")} <= volumes.keys()


def test_prometheus_asks_the_port_for_probes(services: dict[str, dict[str, Any]]) -> None:
    inside = mounts(services["prometheus"])
    prometheus = yaml.safe_load(inside["/etc/prometheus/prometheus.yml"].read_text())
    port = re.findall(r"GRADCAM_PROBE_PORT=(\d+)", DOCKERFILE)[0]
    (scraped,) = prometheus["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": [f"gradcam:{port}"]}]
    assert [f"/etc/prometheus/{name}" in inside for name in prometheus["rule_files"]] == [True]


def test_grafana_finds_prometheus_and_the_dashboard(services: dict[str, dict[str, Any]]) -> None:
    inside = mounts(services["grafana"])
    (source,) = read("grafana/datasource.yaml")["datasources"]
    assert source["type"] == "prometheus"
    assert source["url"] == f"http://prometheus:{services['prometheus']['ports'][0].split(':')[-1]}"
    (provider,) = read("grafana/dashboards.yaml")["providers"]
    assert inside[f"{provider['options']['path']}/gradcam.json"].samefile(
        FOLDER / "../grafana.json"
    )


def test_the_dockerfile_is_clean() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    files = [FOLDER.parent.parent / "Dockerfile", FOLDER.parent / "ray" / "Dockerfile"]
    subprocess.run([hadolint, *files], check=True, timeout=60)
