"""Ray, Serve and the service in a network that nobody else reaches: `with staged() as stage:`.

Ray listens on every interface. Where the kernel allows it, the whole stage runs in a network and
among processes of its own, which all end with it; else on this machine's loopback alone.

    python -m tests.ray.stage FOLDER PORT

is the process inside: it deploys deploy/ray/serve.yaml and two slow applications more, says what it
did in lines of JSON, and does what it is told on standard input until that ends.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil

from tests.service.conftest import SLOW, encoded, noise
from tests.service.live import ROOT, free_port
from tests.waiting import until

LOOPBACK = "ip link set lo up 2>/dev/null || ifconfig lo up; exec "
ALONE = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
START_SECONDS = 300
PNG = {"Content-Type": "image/png"}


@dataclass(frozen=True)
class Stage:
    """A stage that is up."""

    process: subprocess.Popen[str]
    entering: tuple[str, ...]
    """The words before a command that is to run in its network."""
    environment: dict[str, str]
    url: str

    def run(self, *command: str, seconds: float = 900) -> subprocess.CompletedProcess[str]:
        """A command in the stage's network, GRADCAM_TEST_URL naming the service."""
        return subprocess.run(
            [*self.entering, *command],
            cwd=ROOT,
            env={**self.environment, "GRADCAM_TEST_URL": self.url},
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def tell(self, word: str) -> Any:
        """Have the process inside do what it calls `word`; its answer."""
        assert self.process.stdin
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.heard()

    def heard(self) -> Any:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the stage ended")


@contextmanager
def staged() -> Iterator[Stage]:
    words = alone()
    port = 8000 if words else free_port()
    # Short: Ray puts sockets in it, whose paths may have a hundred letters.
    folder = Path(tempfile.mkdtemp(prefix="ray"))
    around = environment(folder)
    inside = [sys.executable, "-m", "tests.ray.stage", str(folder), str(port)]
    command = [*words, "bash", "-c", LOOPBACK + '"$@"', "-", *inside] if words else inside
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=around,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,  # what ends the tests lets it end in order: its input ends
    )
    try:
        entering: tuple[str, ...] = ()
        stage = Stage(process, entering, around, f"http://127.0.0.1:{port}")
        try:
            assert stage.heard() == {"up": True}
        except AssertionError:
            raise AssertionError((folder / "log").read_text()[-8000:]) from None
        if words:
            (first,) = psutil.Process(process.pid).children()
            user = ["--user", "--preserve-credentials"] if os.geteuid() else []
            entering = ("nsenter", "--target", str(first.pid), "--net", *user)
        yield Stage(process, entering, around, stage.url)
    finally:
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def environment(folder: Path) -> dict[str, str]:
    """In which Ray keeps to itself."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.ray.proxy:gate",
        "RAY_worker_niceness": "0",  # 15 by itself: whatever else runs would come first
        "XDG_STATE_HOME": str(folder / "state"),  # where jobs are kept
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # the node's address is 127.0.0.1
    }


def alone() -> list[str]:
    """The words before a command that is to run in a network of its own; none if none can."""
    for command in (ALONE, [*ALONE, "--map-root-user"]):
        if shutil.which("unshare") and shutil.which("nsenter"):
            tried = subprocess.run(
                [*command, "bash", "-c", "ip link set lo up || ifconfig lo up"],
                capture_output=True,
            )
            if tried.returncode == 0:
                return command
    return []


# Inside


def main(folder: Path, port: int) -> None:
    import ray
    import yaml
    from ray import serve
    from ray.serve import scripts

    catalog = folder / "slow.toml"
    catalog.write_text(SLOW)
    config = yaml.safe_load((ROOT / "deploy" / "ray" / "serve.yaml").read_text())
    config["http_options"]["port"] = port
    config["applications"][0]["args"] |= {"max_jobs": 100, "jobs": str(folder / "jobs")}
    for name, more in (
        ("slow", {"max_queue": 4}),
        ("narrow", {"max_connections": 1, "max_queue": 1, "drain_seconds": 3}),
    ):
        arguments = {"models": str(catalog), "insecure": True, "cpus": 0.5, **more}
        config["applications"].append(
            {
                "name": name,
                "route_prefix": f"/{name}",
                "import_path": "service.ray.serve:build",
                "args": arguments,
            }
        )
    file = folder / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    ray.init(
        address="local",
        num_cpus=8,  # logical ones: a slot for every replica
        num_gpus=0,
        namespace="serve",
        include_dashboard=False,
        _temp_dir=str(folder),
        object_store_memory=200_000_000,
    )
    try:
        scripts.run.main([str(file), "--non-blocking"], standalone_mode=False)
        running(serve)
        say({"up": True})
        words: dict[str, Callable[[], Any]] = {
            "status": lambda: status(serve),
            "drain": lambda: drain(serve, f"http://127.0.0.1:{port}/slow"),
            "kill": lambda: kill(f"http://127.0.0.1:{port}/narrow"),
        }
        for line in sys.stdin:
            say({line.strip(): words[line.strip()]()})
    finally:
        serve.shutdown()
        ray.shutdown()


def say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def status(serve: Any) -> dict[str, str]:
    return {name: str(app.status.value) for name, app in serve.status().applications.items()}


def running(serve: Any) -> None:
    def all_run() -> bool:
        found = status(serve)
        assert "DEPLOY_FAILED" not in found.values(), serve.status()
        return set(found.values()) == {"RUNNING"} and len(found) >= 3

    until(all_run, START_SECONDS)


def ask(url: str, seed: int, images: int = 1, passes: int = 1) -> dict[str, Any]:
    """An explanation that takes half a second for each image and pass: what came, and after how
    long."""
    began = time.monotonic()
    photos = [encoded(noise(8, 8, 1000 * seed + each)) for each in range(images)]
    files = [("image", (f"{each}.png", photo)) for each, photo in enumerate(photos)]
    asked: dict[str, str | int] = {"method": "rise", "budget": passes} if passes > 1 else {}
    answer = httpx2.post(f"{url}/v1/models/slow:explain", params=asked, files=files, timeout=120)
    kind = answer.headers.get("content-type", "")
    return {
        "status": answer.status_code,
        "type": answer.json().get("type") if "json" in kind else answer.text,
        "retry": answer.headers.get("retry-after"),
        "seconds": time.monotonic() - began,
    }


def drain(serve: Any, url: str) -> list[dict[str, Any]]:
    """Take an application away while it has work."""
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(ask, url, seed, 2) for seed in (50, 51)]
        time.sleep(0.5)
        serve.delete("slow")
        return [future.result() for future in futures]


def kill(url: str) -> list[dict[str, Any]]:
    """End a replica while it has work; then ask again until another one answers."""
    ask(url, 59)  # once it is free: what still waits for one is given to the next
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(ask, url, 60, passes=30)
        time.sleep(0.7)
        for process in psutil.process_iter(["cmdline"]):
            if any("ServeReplica:narrow" in word for word in process.info["cmdline"] or ()):
                process.kill()
        answers = [future.result()]
    latest = time.monotonic() + START_SECONDS
    while answers[-1]["status"] != 200 and time.monotonic() < latest:
        time.sleep(0.5)
        answers.append(ask(url, 61 + len(answers)))
    return answers


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
