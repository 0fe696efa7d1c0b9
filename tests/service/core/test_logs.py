"""What the service writes down, and what it never does: keys, images, lines of somebody else's."""

from __future__ import annotations

import base64
import json
import logging
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.core.logs import logging_set_up
from service.features.keys.keys import new_key
from service.settings import Settings
from tests.service.conftest import encoded, noise, wait_until_ready
from tests.service.http.test_overload import FRAGILE
from tests.service.live import serving

CATALOG = """
[[models]]
name = "fragile"
source = "factory:tests.zoo.factories:fragile"
kind = "classes"
weights = "none"
input_size = 8
mean = [0, 0, 0]
std = [1, 1, 1]
"""
EXPLAIN = "/v1/models/fragile:explain"
PNG = {"Content-Type": "image/png"}
PHOTO = encoded(noise(8, 8))
WHITE = encoded(Image.new("RGB", (8, 8), "white"))
SENT = {"instances": [{"image": {"b64": base64.b64encode(PHOTO).decode()}}]}
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def talk(http: httpx2.Client, secret: str) -> list[httpx2.Response]:
    """What callers send, friendly and not."""
    key = {"X-API-Key": secret}
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    return [
        http.post(EXPLAIN, content=PHOTO, headers={**PNG, **key, "X-Request-ID": "ours-1"}),
        http.post(EXPLAIN, json=SENT, headers={"Authorization": f"Bearer {secret}"}),
        http.get("/v1/models", headers={"Authorization": f"Basic {basic}"}),
        http.get(f"/v1/models?key={secret}"),
        http.get("/v1/models", headers={"X-API-Key": f"{secret}x"}),
        http.get("/%1b%5b31m%0aFAKE%20LINE%0d%00", headers=key),
        http.get("/v1/models/%1b%5b31m%0aFAKE%20LINE", headers=key),
        http.get("/v1/models", headers={**key, "X-Request-ID": 'FAKE"LINE', "User-Agent": "FAKE"}),
        http.get(
            "/v1/models", headers=[(b"X-API-Key", secret.encode()), (b"X-Request-ID", b"\xff")]
        ),
        http.post(EXPLAIN, content=WHITE, headers={**PNG, **key, "X-Request-ID": "ours-2"}),
        http.post(EXPLAIN, content=b"FAKE LINE", headers={**PNG, **key}),
    ]


STATUSES = [200, 200, 200, 401, 401, 404, 404, 200, 200, 500, 422]


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    key, entry = new_key("ann", ["explain"], None)
    file.write_text(entry)
    return key, file


def is_clean(text: str, secret: str) -> bool:
    """Whether it has no control character, no key, no image and nothing of a caller's."""
    assert not CONTROL.search(text)
    encodings = (secret, base64.b64encode(f"user:{secret}".encode()).decode())
    images = (SENT["instances"][0]["image"]["b64"][:24], "IHDR", "IDAT", "\\x89PNG", "u0089PNG")
    for unwanted in (*encodings, secret[8:30], *images, "FAKE", "31m"):
        assert unwanted not in text, text[max(text.find(unwanted) - 300, 0) :][:600]
    return True


@pytest.mark.slow
def test_a_process_writes_one_object_a_line(tmp_path: Path, secret: tuple[str, Path]) -> None:
    key, file = secret
    catalog = tmp_path / "models.toml"
    catalog.write_text(CATALOG)
    environment = {"GRADCAM_LOG_FORMAT": "json", "GRADCAM_KEYS": str(file)}
    with serving("--models", str(catalog), **environment) as (process, http):
        answers = talk(http, key)
        for _ in range(600):  # more lines than a pipe holds that nobody reads
            assert http.get("/v1/models").status_code == 401
        port = http.base_url.port or 0
        for raw in (b"GARBAGE \x1b[31m\r\n\r\n", b"GET / HTTP/1.1\r\nX-Request-ID: \x1b\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
                one.sendall(raw)
                assert one.recv(9).startswith(b"HTTP/1.1 ")
        process.send_signal(signal.SIGTERM)
        said, errors = process.communicate(timeout=30)
    assert [answer.status_code for answer in answers] == STATUSES
    assert is_clean(errors, key)
    assert key not in said
    lines: list[dict[str, Any]] = [json.loads(line) for line in errors.splitlines()]
    for line in lines:
        assert {"event", "level", "logger", "timestamp"} <= set(line)
        assert line["level"] in ("info", "warning", "error")
    logged = {line["request_id"]: line for line in lines if line["event"] == "request"}
    assert set(logged) >= {answer.headers["x-request-id"] for answer in answers}
    for answer in answers:
        line = logged[answer.headers["x-request-id"]]
        assert line["status"] == answer.status_code
        assert 0 < line["ms"] < 30_000
        assert line.get("key") == (None if answer.status_code == 401 else "ann")
    assert answers[0].headers["x-request-id"] == "ours-1"
    assert logged["ours-1"]["route"] == "/v1/models/{model}:explain"
    assert logged["ours-1"]["method"] == "POST"
    assert logged[answers[5].headers["x-request-id"]]["route"] == "unmatched"
    assert {line["route"] for line in logged.values()}.isdisjoint({"/readyz", "/healthz"})
    (failure,) = [line for line in lines if "exception" in line]
    assert failure["request_id"] == "ours-2"
    assert failure["level"] == "error"
    assert "RuntimeError: too bright" in failure["exception"]


@contextmanager
def writing(**settings: Any) -> Iterator[None]:
    """In the service's form, with the handlers of the tests themselves put aside."""
    root = logging.getLogger()
    handlers, level, root.handlers = root.handlers, root.level, []
    try:
        with logging_set_up(Settings(**settings)):
            yield
        assert root.handlers == []
    finally:
        root.handlers = handlers
        root.setLevel(level)


def told_of(
    capfd: pytest.CaptureFixture[str], answers: Sequence[httpx2.Response]
) -> list[dict[str, Any]]:
    """The line of each request, in the order of the answers."""
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    told = {line["request_id"]: line for line in lines if line["event"] == "request"}
    return [told[answer.headers["x-request-id"]] for answer in answers]


def test_words_for_a_person_hold_nothing_more(
    secret: tuple[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor what httpx2, with which callers and the service ask, tells of its requests."""
    key, file = secret
    app = create_app(Settings(keys=file), [FRAGILE])
    with writing(log_format="console"), TestClient(app) as client:
        wait_until_ready(client)
        answers = talk(client, key)
    assert [answer.status_code for answer in answers] == STATUSES
    told = capfd.readouterr().err
    assert "ours-1" in told
    assert "too bright" in told
    assert is_clean(told, key)


def test_the_line_of_a_refused_request_names_its_key(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key, entry = new_key("bob", ["explain"], "5/minute")
    file = tmp_path / "keys.toml"
    file.write_text(entry)
    asked = [
        ("GET", "/unknown"),
        ("POST", "/v1/models/unknown:explain"),
        ("DELETE", "/v1/models"),
        ("DELETE", "/v1/models/fragile"),
        *[("GET", "/v1/models")] * 3,
    ]
    app = create_app(Settings(keys=file), [FRAGILE])
    with writing(log_format="json"), TestClient(app, headers={"X-API-Key": key}) as client:
        answers = [client.request(*each) for each in asked]
    assert {answer.status_code for answer in answers} >= {403, 404, 405, 429}
    assert {line["key"] for line in told_of(capfd, answers)} == {"bob"}


def test_a_line_tells_what_was_asked_and_where_the_time_went(
    secret: tuple[str, Path], capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    key, file = secret
    app = create_app(Settings(keys=file, jobs=tmp_path), [FRAGILE])
    tensor = {"name": "image", "datatype": "BYTES", "shape": [1]}
    data = {**tensor, "data": [base64.b64encode(PHOTO).decode()]}
    two = {"instances": SENT["instances"] * 2, "parameters": {"method": ["layercam", "gradcam"]}}
    with writing(log_format="json"), TestClient(app, headers={"X-API-Key": key}) as client:
        wait_until_ready(client)
        answers = [
            client.post(EXPLAIN, json=two),
            client.post("/v1/models/fragile:predict", content=PHOTO, headers=PNG),
            client.post("/v2/models/fragile/infer", json={"inputs": [data]}),
            client.post("/v1/jobs?model=fragile", json=SENT),
            client.get("/v1/models/fragile"),
            client.post(f"{EXPLAIN}?method=invented", content=PHOTO, headers=PNG),
            client.post(EXPLAIN, content=b"no photo", headers=PNG),
            client.post(EXPLAIN, content=WHITE, headers=PNG),
            client.get("/v1/models/a b"),
        ]
    many, one, v2, job, about, parameter, photo, failed, invented = told_of(capfd, answers)
    phases = {"room", "decode", "preprocess", "queue", "forward_backward"}
    assert [each["model"] for each in (many, one, v2, job, about)] == ["fragile"] * 5
    assert [each.get("images") for each in (many, one, v2, job, about)] == [2, 1, 1, 1, None]
    assert many["methods"] == ["gradcam", "layercam"]
    assert set(many["phases"]) == phases | {"render"}
    assert sum(many["phases"].values()) < many["ms"] * 6
    assert phases <= set(one["phases"])
    assert "methods" not in one
    assert "phases" in v2
    assert all("problem" not in each for each in (many, one, v2, job, about))
    problems = ["unknown-method", "undecodable-image", "internal-error", "unknown-model"]
    for each, problem in zip((parameter, photo, failed, invented), problems, strict=True):
        assert each["problem"] == f"urn:gradcam-service:{problem}"
    assert photo["methods"] == ["gradcam"]
    assert photo["model"] == "fragile"
    assert "model" not in invented


def test_the_line_of_a_request_that_finds_no_place_names_its_model(
    capfd: pytest.CaptureFixture[str],
) -> None:
    app = create_app(Settings(max_queue=1), [FRAGILE])
    with writing(log_format="json"), TestClient(app) as client:
        wait_until_ready(client)
        with app.state.admission.hold("fragile", 1, costly=0):
            answer = client.post(EXPLAIN, content=PHOTO, headers=PNG)
    (line,) = told_of(capfd, [answer])
    assert (line["status"], line["model"]) == (429, "fragile")
    assert line["problem"] == "urn:gradcam-service:queue-full"


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_record_is_a_line_whatever_it_holds(capfd: pytest.CaptureFixture[str], form: str) -> None:
    evil = "a\x1b[31mb\nc\rd\0e\x9bf\u2028g\x7f\ud800"
    log = logging.getLogger("tests")
    with writing(log_format=form):
        log.warning(evil)
        log.warning("%s", evil)
        log.warning("x", extra={"route": evil})
    told = capfd.readouterr().err
    assert len(told.splitlines()) == 3
    assert not CONTROL.search(told)
    assert "\u2028" not in told
    assert told.count("31mb") == 3  # nothing is lost


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_has_no_values_and_no_control_characters_but_its_line_breaks(
    capfd: pytest.CaptureFixture[str], form: str
) -> None:
    key = "gradcam_" + "key" * 7
    with writing(log_format=form):
        try:
            raise ValueError(f"{len(key)}\x1b[31m\x9b")
        except ValueError:
            logging.getLogger("tests").exception("it failed")
    told = capfd.readouterr().err
    assert "ValueError: 29" in told
    assert key not in told
    assert not CONTROL.search(told)


def test_a_record_that_cannot_be_written_harms_nobody(capfd: pytest.CaptureFixture[str]) -> None:
    with writing(log_format="json"):
        logging.getLogger("tests").warning("%d images", "no")
        logging.getLogger("tests").warning("too", extra={"what": object()})
        logging.getLogger("tests").warning("the next one")
    assert "the next one" in capfd.readouterr().err


def test_the_level_is_the_least_that_is_told(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that another test ran in this process may have left handlers of its own.
    monkeypatch.setattr(logging.getLogger("uvicorn"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    with writing(log_format="json", log_level="warning"):
        logging.getLogger("service.access").info("request")
        logging.getLogger("uvicorn.error").warning("from uvicorn", extra={"color_message": "x"})
    (line,) = capfd.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "from uvicorn"
    assert "color_message" not in line
