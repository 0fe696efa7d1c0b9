"""What is deployed: from arguments and environment to Serve's options; the files of deploy/ray."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'gradcam-service[ray]'")
yaml = pytest.importorskip("yaml")

from ray._common.utils import import_attr  # noqa: E402
from ray.serve.schema import ServeDeploySchema  # noqa: E402

from service.core.errors import ConfigError  # noqa: E402
from service.features.ray.proxy import gate  # noqa: E402
from service.features.ray.serve import Scale, build, options  # noqa: E402
from service.models.catalog import EMBEDDED  # noqa: E402
from service.settings import Settings  # noqa: E402
from tests.service.live import ROOT  # noqa: E402

pytestmark = pytest.mark.slow

DEPLOY = ROOT / "deploy" / "ray"
MODELS = '[[models]]\nname = "mine"\nsource = "timm:test_resnet"\nweights = "mine.safetensors"\n'


def deployed(**arguments: Any) -> Any:
    """The deployment that `build` makes."""
    return build(arguments)._bound_deployment


def test_arguments_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "models.toml").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADCAM_MAX_QUEUE", "7")
    monkeypatch.setenv("GRADCAM_MAX_CONNECTIONS", "9")
    monkeypatch.setenv("GRADCAM_HOST", "0.0.0.0")  # as in the image; where it listens is Serve's
    found = deployed(insecure="true", models="models.toml", max_connections="11", max_replicas="1")
    settings, entries = found.init_args
    assert (settings.max_queue, settings.max_connections) == (7, 11)
    assert (found.max_queued_requests, found.max_ongoing_requests) == (7, 11)
    assert settings.models == tmp_path / "models.toml"  # whole: replicas run in another folder
    (entry,) = pickle.loads(pickle.dumps(entries))
    assert entry.path(entry.weights) == tmp_path / "mine.safetensors"
    assert deployed(insecure=True).init_args[1] == (EMBEDDED,)
    shared = deployed(insecure=True, max_replicas=3, jobs="jobs").init_args[0]
    assert shared.jobs == tmp_path / "jobs"


def test_the_services_settings_are_serves_options() -> None:
    settings = Settings(drain_seconds=30, max_queue=5, max_connections=50)
    found = options(settings, Scale(gpus=0, cpus=2, min_replicas=1, max_replicas=4))
    assert found["graceful_shutdown_timeout_s"] == 35
    assert (found["max_queued_requests"], found["max_ongoing_requests"]) == (5, 50)
    assert found["backpressure_config"] == {"status_code": 429, "retry_after_s": 1}
    assert found["ray_actor_options"] == {"num_gpus": 0, "num_cpus": 2}
    assert found["max_replicas_per_node"] == 1
    assert found["autoscaling_config"] == {
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 8,
    }
    shared = options(settings, Scale(gpus=0.5))
    assert shared["ray_actor_options"] == {"num_gpus": 0.5, "num_cpus": 1}
    assert "max_replicas_per_node" not in shared


@pytest.mark.parametrize(("there", "expected"), [({"GPU": 2.0}, 1), ({"CPU": 8.0}, 0)])
def test_a_replica_has_a_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, there: dict[str, float], expected: int
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: there)
    assert options(Settings(), Scale())["ray_actor_options"]["num_gpus"] == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, ["has no keys", "keys=keys.toml", "insecure=true"]),
        ({"keys": "nowhere.toml"}, ["nowhere.toml", "cannot be read"]),
        ({"insecure": True, "host": "0.0.0.0"}, ["host=0.0.0.0", "http_options"]),
        ({"insecure": True, "models": "nowhere.toml"}, ["nowhere.toml", "cannot be read"]),
        ({"insecure": True, "max_quue": 3}, ["max_quue", "GRADCAM_MAX_QUEUE"]),
        ({"insecure": True, "max_queue": 0}, ["max_queue=0", "at least 1"]),
        ({"insecure": True, "gpus": "two"}, ["gpus=two"]),
        ({"insecure": True, "max_replicas": 0}, ["max_replicas=0", "at least 1"]),
        (
            {"insecure": True, "min_replicas": 3, "max_replicas": 2},
            ["min_replicas=3", "at most max_replicas, 2"],
        ),
        (
            {"insecure": True, "allowed_sources": "timm:*", "max_replicas": 2},
            ["allowed_sources=timm:*", "one replica alone", "max_replicas is 2"],
        ),
        (
            {"insecure": True, "max_replicas": 2},
            ["max_replicas=2", "jobs=FOLDER", "jobs_database=URL", "max_jobs=0"],
        ),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    arguments: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        build(arguments)
    for word in words:
        assert word in str(raised.value)


def test_whoever_builds_forwards_or_decodes_loads_no_torch() -> None:
    modules = "service.ray.serve, service.ray.proxy, service.features.batch.decoder"
    code = f"import {modules}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def config(text: str) -> Any:
    found = ServeDeploySchema.model_validate(yaml.safe_load(text))
    (application,) = found.applications
    assert application.import_path == "service.ray.serve:build"
    assert import_attr(application.import_path) is build
    assert found.http_options.request_timeout_s is not None
    # Serve's own time-out is for requests that no replica has: the service's comes before.
    assert found.http_options.request_timeout_s > Settings().deadline_seconds
    return found


def test_serve_yaml_is_what_serve_takes() -> None:
    found = config((DEPLOY / "serve.yaml").read_text())
    assert found.http_options.host == "127.0.0.1"
    arguments = found.applications[0].args
    assert deployed(**arguments).max_ongoing_requests == Settings().max_connections


def test_the_rayservice_is_one(tmp_path: Path) -> None:
    document = yaml.safe_load((DEPLOY / "rayservice.yaml").read_text())
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayService")
    spec = document["spec"]
    found = config(spec["serveConfigV2"])
    assert found.http_options.host == "0.0.0.0"
    arguments = dict(found.applications[0].args)
    assert "insecure" not in arguments
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "a"\ndigest = "sha256:{"0" * 64}"\n')
    mounted, arguments["keys"] = Path(arguments["keys"]), keys
    built = deployed(**arguments)
    wanted = built.ray_actor_options

    cluster = spec["rayClusterConfig"]
    assert cluster["rayVersion"] == "2.60.0"
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["enableInTreeAutoscaling"] is True
    head = cluster["headGroupSpec"]
    assert head["rayStartParams"]["dashboard-host"] == "0.0.0.0"
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    assert workers["maxReplicas"] == arguments["max_replicas"]
    for group in (head, workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert environment == {
            "RAY_AUTH_MODE": "token",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.ray.proxy:gate",
            "RAY_worker_niceness": "0",
        }
        assert import_attr(environment["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"]) is gate
        (mount,) = container["volumeMounts"]
        assert mounted.parent == Path(mount["mountPath"])
        assert mount["name"] in {volume["name"] for volume in pod["volumes"]}
        for probe in ("readinessProbe", "livenessProbe"):
            *python, code = container[probe]["exec"]["command"]
            assert python == ["python3", "-c"]
            compile(code, probe, "exec")
    requests = workers["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert float(requests["nvidia.com/gpu"]) >= wanted["num_gpus"] == 1
    assert float(requests["cpu"]) >= wanted["num_cpus"] == 4
    settings = built.init_args[0]
    grace = workers["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > built._deployment_config.graceful_shutdown_timeout_s > settings.drain_seconds
