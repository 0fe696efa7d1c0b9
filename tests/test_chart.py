"""The Helm chart: what it renders is valid for Kubernetes, and fits the service."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from service import __version__
from service.core.metrics import Metrics
from service.core.settings import PREFIX
from service.features.keys.keys import read_keys
from service.models.catalog import read_catalog
from service.settings import Settings

CHART = Path(__file__).parent.parent / "deploy" / "helm" / "gradcam-service"
VALUES = {
    file.name.removesuffix("-values.yaml"): yaml.safe_load(file.read_text(encoding="utf-8"))
    for file in sorted((CHART / "ci").glob("*-values.yaml"))
}
OF_THE_CHART = {
    "port", "grpc_port", "probe_port", "drain_seconds", "keys", "insecure", "models", "image_hosts",
    "jobs",
    "jobs_database",
}  # fmt: skip
"""Settings that the chart sets by other values than `settings`."""
FOREIGN = {"ServiceMonitor"}
"""Kinds of which Kubernetes itself has no schema."""
READ: dict[str, Any] = {"serviceMonitor": {"enabled": True}}
"""Values with which Prometheus reads the metrics."""
Manifest = dict[str, Any]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chart() -> Iterator[helm.Chart]:
    with helm.Chart.load(CHART) as chart:
        yield chart


def rendered(chart: helm.Chart, values: dict[str, Any]) -> dict[str, str]:
    """What the chart renders, once its schema has taken the values."""
    chart.validate_schema(values)
    texts: dict[str, str] = chart.render(values, name="demo", namespace="vision")
    return texts


class Release:
    """What the chart renders with values."""

    def __init__(self, chart: helm.Chart, values: dict[str, Any]) -> None:
        files = rendered(chart, values)
        texts = [text for name, text in files.items() if name.endswith(".yaml")]
        self.manifests: list[Manifest] = [
            each for text in texts for each in yaml.safe_load_all(text) if each
        ]

    def of_kind(self, kind: str) -> list[Manifest]:
        return [each for each in self.manifests if each["kind"] == kind]

    def only(self, kind: str) -> Manifest:
        (found,) = self.of_kind(kind)
        return found

    @property
    def pod(self) -> Manifest:
        pod: Manifest = self.only("Deployment")["spec"]["template"]["spec"]
        return pod

    @property
    def container(self) -> Manifest:
        (container,) = self.pod["containers"]
        return dict(container)

    @property
    def settings(self) -> Settings:
        given = {
            each["name"]: each.get("value", "postgresql+psycopg://from/secret")
            for each in self.container["env"]
            if each["name"].startswith(PREFIX)
        }
        return Settings.read({"GRADCAM_HOST": "0.0.0.0", **given})


@pytest.fixture(params=VALUES)
def release(chart: helm.Chart, request: pytest.FixtureRequest) -> Release:
    return Release(chart, VALUES[request.param])


@pytest.fixture
def everything(chart: helm.Chart) -> Release:
    return Release(chart, VALUES["all"])


@pytest.mark.parametrize("values", [{}, *VALUES.values()], ids=["none", *VALUES])
def test_lint_finds_nothing(values: dict[str, Any]) -> None:
    report = helm.lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] > 1] == []


@pytest.mark.parametrize("version", ["1.25", kubernetes_validate.latest_version()])
def test_every_manifest_is_valid_for_kubernetes(release: Release, version: str) -> None:
    for manifest in release.manifests:
        if manifest["kind"] not in FOREIGN:
            kubernetes_validate.validate(manifest, version, strict=True)
    named = [(each["kind"], each["metadata"]["name"]) for each in release.manifests]
    assert len(set(named)) == len(named)


def test_the_chart_is_of_this_version(chart: helm.Chart) -> None:
    assert chart.metadata["appVersion"] == chart.version == __version__


def test_without_keys_the_service_is_called_by_the_names_of_its_kubernetes_service(
    chart: helm.Chart,
) -> None:
    release = Release(chart, {"insecure": True})
    name = release.only("Service")["metadata"]["name"]
    in_full = [f"{name}.vision{domain}" for domain in ("", ".svc", ".svc.cluster.local")]
    assert release.settings.hosts == (name, *in_full)
    named = Release(chart, {"insecure": True, "settings": {"hosts": "maps.example"}})
    assert named.settings.hosts == ("maps.example",)
    of_a_platform = Release(chart, {"insecure": True, "settings": {"platform": "kserve"}})
    assert of_a_platform.settings.hosts == ("*",)


def test_everything_on_is_everything(everything: Release) -> None:
    assert {each["kind"] for each in everything.manifests} == {
        "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy",
        "PersistentVolumeClaim", "Pod", "PodDisruptionBudget", "Secret", "Service",
        "ServiceMonitor",
    }  # fmt: skip


def test_the_pod_has_no_rights(release: Release) -> None:
    for pod in (release.pod, release.only("Pod")["spec"]):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_openshift_chooses_the_user(everything: Release) -> None:
    assert everything.pod["securityContext"].keys().isdisjoint({"runAsUser", "fsGroup"})


def test_variables_are_settings_that_the_service_takes(release: Release) -> None:
    settings = release.settings  # it would refuse an unknown name or a wrong value
    ports = {each["name"]: each["containerPort"] for each in release.container["ports"]}
    assert ports == {"http": settings.port, "probes": settings.probe_port} | (
        {"grpc": settings.grpc_port} if settings.grpc_port else {}
    )
    mounted = {each["mountPath"] for each in release.container["volumeMounts"]}
    named = [settings.keys, settings.models, settings.jobs and settings.jobs / "database"]
    assert {str(path.parent) for path in named if path} <= mounted
    assert (settings.keys is None) == settings.insecure
    assert bool(settings.hosts) == settings.insecure


def test_each_setting_has_one_place(chart: helm.Chart) -> None:
    assert chart.schema
    names = chart.schema["properties"]["settings"]["propertyNames"]["enum"]
    assert set(names) == Settings.model_fields.keys() - OF_THE_CHART


def test_settings_arrive_as_they_are(everything: Release) -> None:
    settings = everything.settings
    assert (settings.max_body_bytes, settings.delay_tolerance) == (20_000_000, 4.5)
    assert (settings.log_level, settings.drain_seconds) == ("warning", 45)
    assert settings.image_hosts == ("images.example", "photos.example")
    assert settings.jobs_database


def test_probes_ask_what_the_supervisor_answers(release: Release) -> None:
    container = release.container
    asked = {
        name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")
    }
    assert {each["port"] for each in asked.values()} == {"probes"}
    assert asked["startup"]["path"] == asked["readiness"]["path"] == "/readyz"
    assert asked["liveness"]["path"] == "/healthz"


def test_a_pod_has_time_to_finish(release: Release) -> None:
    sleep = release.container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep[0] == "sleep"
    needed = int(sleep[1]) + release.settings.drain_seconds
    assert release.pod["terminationGracePeriodSeconds"] > needed


def test_there_is_no_egress_unless_something_needs_it(chart: helm.Chart) -> None:
    def ports(**values: Any) -> list[int]:
        policy = Release(chart, {"insecure": True, **values}).only("NetworkPolicy")["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        return [port["port"] for rule in policy["egress"] for port in rule["ports"]]

    jobs = {"enabled": True, "database": {"existingSecret": "s"}}
    assert ports() == []
    assert ports(imageHosts=["images.example"]) == [53, 53, 443]
    assert ports(jobs=jobs) == [53, 53, 5432]
    assert ports(networkPolicy={"egress": [{"ports": [{"port": 4318}]}]}) == [4318]


def test_the_metrics_are_not_behind_the_service_that_callers_reach(everything: Release) -> None:
    services = {each["metadata"]["name"]: each["spec"] for each in everything.of_kind("Service")}
    ports = {
        name: [port["targetPort"] for port in each["ports"]] for name, each in services.items()
    }
    name = everything.only("Deployment")["metadata"]["name"]
    assert ports == {name: ["http", "grpc"], f"{name}-metrics": ["probes"]}
    monitor = everything.only("ServiceMonitor")["spec"]
    labels = [each["metadata"]["labels"] for each in everything.of_kind("Service")]
    selected = [monitor["selector"]["matchLabels"].items() <= each.items() for each in labels]
    assert sorted(selected) == [False, True]
    ingress = everything.only("NetworkPolicy")["spec"]["ingress"]
    assert [[port["port"] for port in rule["ports"]] for rule in ingress] == [
        ["http", "grpc"],
        ["probes"],
    ]
    assert all(rule["from"] for rule in ingress)


def test_selectors_select_the_pods_of_the_deployment_alone(everything: Release) -> None:
    deployment = everything.only("Deployment")["spec"]
    selector = deployment["selector"]["matchLabels"]
    assert selector.items() <= deployment["template"]["metadata"]["labels"].items()
    assert not selector.items() <= everything.only("Pod")["metadata"]["labels"].items()
    for kind in ("PodDisruptionBudget", "NetworkPolicy"):
        spec = everything.only(kind)["spec"]
        assert (spec.get("selector") or spec["podSelector"])["matchLabels"] == selector


def test_the_number_of_pods_follows_metrics_that_are_there(everything: Release) -> None:
    scaler = everything.only("HorizontalPodAutoscaler")["spec"]
    names = {each["pods"]["metric"]["name"] for each in scaler["metrics"]}
    shown = Metrics().render([]).decode()
    assert len(names) == 2
    for name in names:
        family = name.removesuffix("_sum")
        assert f"# TYPE {family} {'histogram' if family != name else 'gauge'}\n" in shown
    assert "replicas" not in everything.only("Deployment")["spec"]


def test_who_reads_the_metrics_without_an_operator_may_reach_them(chart: helm.Chart) -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    values = {"autoscaling": {"enabled": True}, "networkPolicy": {"metricsFrom": peers}}
    release = Release(chart, {"insecure": True, **values})
    assert release.of_kind("ServiceMonitor") == []
    assert release.only("HorizontalPodAutoscaler")
    rules = release.only("NetworkPolicy")["spec"]["ingress"]
    assert {"ports": [{"port": "probes"}], "from": peers} in rules


def test_the_service_reads_the_files(everything: Release, tmp_path: Path) -> None:
    given = everything.only("ConfigMap")["data"] | everything.only("Secret")["stringData"]
    for name, text in given.items():
        tomllib.loads(text)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [each.name for each in read_catalog(tmp_path / "models.toml")] == ["efficientnet-lite0"]
    read_keys(tmp_path / "keys.toml")


def test_a_gpu_is_asked_for(chart: helm.Chart) -> None:
    pod = Release(chart, VALUES["gpu"]).pod
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert "nvidia" not in json.dumps(Release(chart, VALUES["default"]).manifests)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "the service needs API keys"),
        ({"insecure": True, "settings": {"max_que": 1}}, "max_que"),
        ({"insecure": True, "replica": 2}, "replica"),
        ({"insecure": True, "replicas": 2, "jobs": {"enabled": True}}, "through a database"),
        (
            {"insecure": True, "autoscaling": {"enabled": True}, "jobs": {"enabled": True}, **READ},
            "through a database",
        ),
        ({"insecure": True, "autoscaling": {"enabled": True}}, "nobody reads: set serviceMonitor"),
        (
            {"insecure": True, "autoscaling": {"enabled": True, "queueDepth": 0}, **READ},
            "has no metric to follow",
        ),
    ],
)
def test_a_mistake_is_refused(chart: helm.Chart, values: dict[str, Any], told: str) -> None:
    with pytest.raises(helm.HelmError, match=told):
        rendered(chart, values)


def test_one_pod_at_a_time_has_jobs_without_a_database(chart: helm.Chart) -> None:
    jobs = Release(chart, {"insecure": True, "jobs": {"enabled": True}})
    assert jobs.only("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
