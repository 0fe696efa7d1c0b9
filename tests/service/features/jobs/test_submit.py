"""Each form of a job gives what `:explain` gives, and what is sent twice is one job."""

from __future__ import annotations

import base64
import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from service.app import create_app
from service.features.keys.keys import new_key
from service.settings import Settings
from tests.service.conftest import CAT, ESPRESSO, MODEL, encoded, noise
from tests.service.features.jobs.conftest import TINY, app_with
from tests.service.features.jobs.forms import (
    FORMS,
    GZIP,
    NDJSON,
    TAR,
    ZIP,
    accepted,
    done,
    ended,
    form_of,
    inline,
    instances,
    lines,
    raw_form,
    tarred,
    zipped,
)
from tests.waiting import until

pytestmark = pytest.mark.contract

ASKED = {"fit": "squash", "size": "model", "output": "heatmap", "top_k": 2}
DOT = encoded(noise(9, 9))


@pytest.fixture(scope="module")
def pictures(photos: dict[int, Image.Image]) -> dict[str, bytes]:
    return {
        "cats/chelsea.png": encoded(photos[CAT].resize((240, 160))),
        "coffee.jpg": encoded(photos[ESPRESSO].resize((200, 150)), "JPEG"),
    }


@pytest.fixture(scope="module")
def explained(jobs: TestClient, pictures: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """What `:explain` says of them: id → prediction and explanation."""
    body = {"instances": instances(pictures), "parameters": ASKED}
    answer = jobs.post(f"{MODEL}:explain", json=body).json()
    return {
        each["id"]: {"prediction": told, "explanation": each}
        for told, each in zip(answer["predictions"], answer["explanations"], strict=True)
    }


def pixels(picture: dict[str, Any]) -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(base64.b64decode(picture["data"]))) as image:
        return np.asarray(image).astype(int)


@pytest.mark.parametrize("kind", FORMS)
def test_every_form_gives_what_explain_gives(
    jobs: TestClient,
    kind: str,
    pictures: dict[str, bytes],
    explained: dict[str, dict[str, Any]],
) -> None:
    found = done(jobs, params=ASKED, **form_of(kind, pictures))
    assert found.keys() == explained.keys()
    for index, (name, right) in enumerate(explained.items()):
        line = found[name]
        assert line["index"] == index
        assert "error" not in line
        (explanation,) = line["explanations"]
        expected = right["explanation"]
        for part in ("region", "peak", "hot", "method", "layer", "id", "warnings"):
            assert explanation.get(part) == expected.get(part), part
        assert explanation["target"]["index"] == expected["target"]["index"]
        probability = expected["target"]["probability"]
        assert explanation["target"]["probability"] == pytest.approx(probability, abs=1e-4)
        # In another batch the last bits of a sum may differ, and so may a rounded pixel.
        for part in ("heatmap", "overlay"):
            assert np.abs(pixels(explanation[part]) - pixels(expected[part])).max() <= (
                1 if part == "heatmap" else 8
            )
        classes = [each["index"] for each in line["prediction"]["classes"]]
        assert classes == [each["index"] for each in right["prediction"]["classes"]]
        assert len(classes) == ASKED["top_k"]


def test_an_archive_gzipped_under_either_type_is_a_tar(jobs: TestClient) -> None:
    packed = tarred({"a.png": DOT}, "w:gz")
    for headers in (TAR, GZIP, {"Content-Type": "application/x-gzip"}):
        assert list(done(jobs, params={"model": "tiny"}, content=packed, headers=headers)) == [
            "a.png"
        ]
    also = {"Content-Type": "application/x-zip-compressed"}
    assert list(
        done(jobs, params={"model": "tiny"}, content=zipped({"b.png": DOT}), headers=also)
    ) == ["b.png"]


def test_without_a_model_it_is_the_first(jobs: TestClient) -> None:
    document = accepted(jobs.post("/v1/jobs", **form_of("json", {"a": DOT})))
    assert document["model"] == "efficientnet-lite0"
    assert document["parameters"] == {"fit": "squash"}
    assert document["warnings"] == []
    assert document["counts"] == {"total": 1, "done": 0, "failed": 0, "left": 1}
    ended(jobs, document["id"])


def test_a_model_is_named_in_body_query_and_field(jobs: TestClient) -> None:
    body = {"model": "tiny", "instances": instances({"a": DOT})}
    fields = {"files": [("image", ("a", DOT))], "data": {"model": "tiny"}}
    for request in (
        {"json": body},
        {"json": body, "params": {"model": "efficientnet-lite0"}},  # the body's counts
        {"params": {"model": "tiny"}, **form_of("json", {"a": DOT})},
        fields,
        {**fields, "params": {"model": "efficientnet-lite0"}},
        {"params": {"model": "tiny"}, **form_of("zip", {"a": DOT})},
    ):
        document = accepted(jobs.post("/v1/jobs", **request))
        assert document["model"] == "tiny", request
        ended(jobs, document["id"])


def test_the_body_wins_over_the_query(jobs: TestClient) -> None:
    query = {"model": "tiny", "method": "layercam", "size": "layer", "fit": "squash"}
    body = {"instances": instances({"a": DOT}), "parameters": {"method": "hirescam"}}
    document = accepted(jobs.post("/v1/jobs", params=query, json=body))
    assert document["parameters"] == {"method": "hirescam", "size": "layer", "fit": "squash"}
    files = [("image", ("a", DOT))]
    fields = {"method": "gradcam++", "top_k": "2"}
    document = accepted(jobs.post("/v1/jobs", params=query, files=files, data=fields))
    asked = {"method": "gradcam++", "size": "layer", "fit": "squash", "top_k": 2}
    assert document["parameters"] == asked
    ended(jobs, document["id"])


def test_an_instance_has_parameters_of_its_own(jobs: TestClient) -> None:
    image = inline(DOT)
    contrast = {"class": 1, "minus": 2}
    sent: list[dict[str, Any]] = [
        {"id": "plain", "image": image},
        {"id": "target", "image": image, "target": 2},
        {"id": "several", "image": image, "target": [0, 1]},
        {"id": "method", "image": image, "method": "layercam"},
        {"id": "layer", "image": image, "layer": "conv1"},
        {"id": "contrast", "image": image, "target": contrast},
        {"id": "unit", "image": image, "target": {"layer": "relu2", "channel": 3}},
    ]
    body = {"model": "tiny", "instances": sent, "parameters": {"target": 0}}
    for request in (
        {"json": body},
        {"content": lines(sent), "headers": NDJSON, "params": {"model": "tiny", "target": 0}},
    ):
        found = done(jobs, **request)
        made = {
            name: [
                (each["target"].get("index"), each["method"], each["layer"])
                for each in line["explanations"]
            ]
            for name, line in found.items()
        }
        assert made["plain"] == [(0, "gradcam", "relu2")]
        assert made["target"] == [(2, "gradcam", "relu2")]
        assert made["several"] == [(0, "gradcam", "relu2"), (1, "gradcam", "relu2")]
        assert made["method"] == [(0, "layercam", "relu2")]
        assert made["layer"] == [(0, "gradcam", "conv1")]
        (against,) = found["contrast"]["explanations"]
        assert (against["target"]["index"], against["target"]["minus"]["index"]) == (1, 2)
        (driven,) = found["unit"]["explanations"]
        assert driven["target"]["unit"] == {"layer": "relu2", "channel": 3}


def test_an_instance_s_own_mistake_is_its_own(jobs: TestClient) -> None:
    image = inline(DOT)
    sent = [
        {"id": "good", "image": image},
        {"id": "class", "image": image, "target": 3},
        {"id": "label", "image": image, "target": "unicorn"},
        {"id": "layer", "image": image, "layer": "conv9"},
        {"id": "method", "image": image, "method": "gradcam2"},
        {
            "id": "maps",
            "image": image,
            "target": [{"layer": "conv2", "channel": at} for at in range(60)],
            "layer": ["conv1", "conv2"],
        },
    ]
    found = done(jobs, json={"model": "tiny", "instances": sent})
    kinds = {name: line["problem"]["type"] for name, line in found.items() if "problem" in line}
    assert {name: kind.rpartition(":")[2] for name, kind in kinds.items()} == {
        "class": "class-out-of-range",
        "label": "unknown-label",
        "layer": "unknown-layer",
        "method": "unknown-method",
        "maps": "invalid-parameter",
    }
    assert found["maps"]["error"] == "the image would have 120 maps; at most 100 are allowed"
    assert found["label"]["problem"]["detail"] == found["label"]["error"]


@pytest.mark.parametrize("where", ["query", "json", "form"])
def test_a_target_may_be_an_object_wherever_it_is_sent(jobs: TestClient, where: str) -> None:
    target = {"class": 1, "minus": 2}
    images = {"a": DOT}
    query = {"model": "tiny"}
    if where == "query":
        request = {"params": {**query, "target": json.dumps(target)}, **form_of("zip", images)}
    elif where == "json":
        body = {"instances": instances(images), "parameters": {"target": target}}
        request = {"params": query, "json": body}
    else:
        request = {
            "params": query,
            "files": [("image", ("a", DOT))],
            "data": {"target": json.dumps(target)},
        }
    job = accepted(jobs.post("/v1/jobs", **request))
    assert job["parameters"] == {"target": target, "fit": "squash"}
    ended(jobs, job["id"])
    (explanation,) = jobs.get(f"/v1/jobs/{job['id']}/results/a").json()["explanations"]
    assert (explanation["target"]["index"], explanation["target"]["minus"]["index"]) == (1, 2)


def test_without_ids_they_are_numbered(jobs: TestClient) -> None:
    body = {"model": "tiny", "instances": [{"image": inline(DOT)}] * 3}
    assert {line["index"]: name for name, line in done(jobs, json=body).items()} == {
        0: "0",
        1: "1",
        2: "2",
    }
    part = 'form-data; name="image"; filename=""'
    found = done(jobs, params={"model": "tiny"}, **raw_form([(part, DOT), (part, DOT)]))
    assert sorted(found) == ["0", "1"]


def test_hidden_files_of_an_archive_are_left_out_and_told_of(jobs: TestClient) -> None:
    images = {"a.png": DOT, ".DS_Store": b"x", "__MACOSX/._a.png": b"x", "b/Thumbs.db": b"x"}
    for kind in ("zip", "tar"):
        request = form_of(kind, images)
        document = accepted(jobs.post("/v1/jobs", params={"model": "tiny"}, **request))
        assert document["counts"]["total"] == 1
        assert document["warnings"] == ["3 hidden files of the archive left out"]


def test_an_archive_may_have_folders_and_files_that_are_no_pictures(jobs: TestClient) -> None:
    found = done(
        jobs,
        params={"model": "tiny"},
        **form_of("zip", {"cats/": b"", "cats/a.png": DOT, "README.txt": b"Cats."}),
    )
    assert sorted(found) == ["README.txt", "cats/a.png"]
    assert found["README.txt"]["problem"]["type"].endswith(":undecodable-image")


# The same again


def keyed(key: str, request: dict[str, Any]) -> dict[str, Any]:
    return {**request, "headers": {**request.get("headers", {}), "Idempotency-Key": key}}


@pytest.mark.parametrize("kind", FORMS)
def test_the_same_key_with_the_same_content_is_the_same_job(jobs: TestClient, kind: str) -> None:
    images = {"a.png": DOT, "b.png": encoded(noise(9, 9, 1))}
    request = keyed(f"again {kind}", {"params": {"model": "tiny"}, **form_of(kind, images)})
    first = jobs.post("/v1/jobs", **request)
    job = accepted(first)["id"]
    again = jobs.post("/v1/jobs", **request)  # a form gets another boundary
    assert accepted(again)["id"] == job
    assert again.headers["Location"] == first.headers["Location"]
    if kind == "form":
        assert first.request.headers["Content-Type"] != again.request.headers["Content-Type"]
    ended(jobs, job)
    assert accepted(jobs.post("/v1/jobs", **request))["state"] == "done"


def test_the_same_key_with_other_content_is_refused(jobs: TestClient) -> None:
    first = {"params": {"model": "tiny"}, **form_of("json", {"a": DOT, "b": DOT})}
    job = accepted(jobs.post("/v1/jobs", **keyed("mine", first)))["id"]
    others = [
        {"params": {"model": "tiny"}, **form_of("json", {"a": DOT})},
        {"params": {"model": "tiny"}, **form_of("json", {"b": DOT, "a": DOT})},
        {"params": {"model": "tiny"}, **form_of("json", {"a": DOT, "c": DOT})},
        {"params": {"model": "tiny"}, **form_of("json", {"a": DOT, "b": DOT[:-1]})},
        {"params": {"model": "tiny", "top_k": 2}, **form_of("json", {"a": DOT, "b": DOT})},
        {"params": {"model": "slow"}, **form_of("json", {"a": DOT, "b": DOT})},
        {
            "params": {"model": "tiny"},
            "json": {
                "instances": [
                    {"id": "a", "image": inline(DOT), "target": 1},
                    {"id": "b", "image": inline(DOT)},
                ]
            },
        },
    ]
    for other in others:
        response = jobs.post("/v1/jobs", **keyed("mine", other))
        assert response.status_code == 422, response.text
        assert response.json()["type"] == "urn:gradcam-service:idempotency-conflict"
        assert f"/v1/jobs/{job}" in response.json()["detail"]
    assert accepted(jobs.post("/v1/jobs", **keyed("mine", first)))["id"] == job


def test_two_at_the_same_moment_are_one_job(jobs: TestClient) -> None:
    request = keyed("both", {"params": {"model": "tiny"}, **form_of("zip", {"a": DOT})})
    gate = threading.Barrier(4)

    def bring(_: int) -> str:
        gate.wait()
        found: str = accepted(jobs.post("/v1/jobs", **request))["id"]
        return found

    with ThreadPoolExecutor(4) as pool:
        brought = set(pool.map(bring, range(4)))
    assert len(brought) == 1
    listed = [each["id"] for each in jobs.get("/v1/jobs?limit=200").json()["jobs"]]
    assert listed.count(brought.pop()) == 1


def test_a_key_is_free_when_its_job_is_gone(jobs: TestClient) -> None:
    request = keyed("once", {"params": {"model": "tiny"}, **form_of("json", {"a": DOT})})
    first = accepted(jobs.post("/v1/jobs", **request))["id"]
    assert jobs.delete(f"/v1/jobs/{first}?purge=true").status_code == 204
    second = accepted(jobs.post("/v1/jobs", **request))["id"]
    assert second != first
    assert ended(jobs, second)["state"] == "done"


def test_a_cancelled_job_keeps_its_key(jobs: TestClient) -> None:
    request = keyed("cancelled", {"params": {"model": "slow"}, **form_of("json", {"a": DOT})})
    job = accepted(jobs.post("/v1/jobs", **request))["id"]
    assert jobs.delete(f"/v1/jobs/{job}").json()["state"] == "cancelled"
    assert accepted(jobs.post("/v1/jobs", **request))["state"] == "cancelled"


# Whose they are


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Name → key; "file" → where their digests are."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    made, entries = {}, []
    for name, scopes in (("ann", ["explain"]), ("bob", ["explain"]), ("eve", ["explain", "admin"])):
        made[name], entry = new_key(name, scopes, None)
        entries.append(entry)
    file.write_text("\n".join(entries))
    return {**made, "file": str(file)}


@pytest.fixture(scope="module")
def guarded(keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    settings = Settings(jobs=tmp_path_factory.mktemp("guarded"), keys=Path(keys["file"]))
    with app_with((TINY,), settings) as client:
        yield client


def test_jobs_are_seen_by_their_owner_and_by_admins(
    guarded: TestClient, keys: dict[str, str]
) -> None:
    ann, bob, eve = ({"X-API-Key": keys[name]} for name in ("ann", "bob", "eve"))
    request = form_of("json", {"a": DOT})
    job = accepted(guarded.post("/v1/jobs", **request, headers=ann))["id"]
    other = accepted(guarded.post("/v1/jobs", **request, headers=bob))["id"]

    def listed(who: dict[str, str]) -> list[str]:
        return [each["id"] for each in guarded.get("/v1/jobs", headers=who).json()["jobs"]]

    assert listed(ann) == [job]
    assert listed(bob) == [other]
    assert listed(eve) == [other, job]
    for path in ("", "/results", "/results/a", "/events", "/archive", "/archive?format=parquet"):
        seen = guarded.get(f"/v1/jobs/{job}{path}", headers=bob)
        assert seen.status_code == 404, path
        never = guarded.get(f"/v1/jobs/{'0' * 28}{path}", headers=bob)
        assert seen.json()["detail"].replace(job, "0" * 28) == never.json()["detail"]
    assert guarded.delete(f"/v1/jobs/{job}", headers=bob).status_code == 404
    assert guarded.delete(f"/v1/jobs/{job}?purge=true", headers=bob).status_code == 404
    until(lambda: guarded.get(f"/v1/jobs/{job}", headers=ann).json()["state"] == "done")
    for who in (ann, eve):
        assert guarded.get(f"/v1/jobs/{job}/results/a", headers=who).status_code == 200
    assert guarded.delete(f"/v1/jobs/{job}?purge=true", headers=eve).status_code == 204
    assert guarded.get(f"/v1/jobs/{job}", headers=ann).status_code == 404


def test_another_caller_s_idempotency_key_is_another_key(
    guarded: TestClient, keys: dict[str, str]
) -> None:
    brought = {}
    for name in ("ann", "bob"):
        headers = {"X-API-Key": keys[name], "Idempotency-Key": "shared"}
        response = guarded.post("/v1/jobs", headers=headers, **form_of("json", {name: DOT}))
        brought[name] = accepted(response)["id"]
    assert brought["ann"] != brought["bob"]


def test_without_a_key_there_is_nothing_to_see(guarded: TestClient) -> None:
    for verb, path in (
        ("POST", "/v1/jobs"),
        ("GET", "/v1/jobs"),
        ("GET", "/v1/jobs/x/results"),
        ("DELETE", "/v1/jobs/x"),
    ):
        response = guarded.request(verb, path)
        assert response.status_code == 401
        assert response.json()["type"] == "urn:gradcam-service:unauthorized"


# The list


@pytest.mark.slow
def test_the_list_has_pages_the_latest_first(tmp_path: Path) -> None:
    with app_with((TINY,), Settings(jobs=tmp_path)) as client:
        empty = client.get("/v1/jobs").json()
        assert empty == {"jobs": []}
        brought = [
            accepted(client.post("/v1/jobs", **form_of("json", {"a": DOT})))["id"] for _ in range(5)
        ]
        for job in brought:
            ended(client, job)
        assert brought == sorted(brought)
        seen, pages, following = [], 0, "/v1/jobs?limit=2"
        while following:
            page = client.get(following).json()
            assert len(page["jobs"]) <= 2
            seen += [each["id"] for each in page["jobs"]]
            pages += 1
            following = page.get("next")
        assert seen == brought[::-1]
        assert pages == 3
        assert page["jobs"][0] == client.get(f"/v1/jobs/{seen[-1]}").json()

        before = client.get("/v1/jobs", params={"before": brought[2]}).json()["jobs"]
        assert [each["id"] for each in before] == brought[1::-1]
        page = client.get("/v1/jobs?limit=2&state=done").json()
        assert page["next"] == f"/v1/jobs?limit=2&before={brought[3]}&state=done"
        assert client.get("/v1/jobs?state=running").json() == {"jobs": []}
        assert len(client.get("/v1/jobs?limit=5").json()["jobs"]) == 5
        assert "next" not in client.get("/v1/jobs?limit=5").json()


def test_the_list_tells_states_apart(jobs: TestClient) -> None:
    running = accepted(
        jobs.post(
            "/v1/jobs",
            params={"model": "slow"},
            **form_of("json", {str(at): DOT for at in range(9)}),
        )
    )["id"]
    until(lambda: jobs.get(f"/v1/jobs/{running}").json()["state"] == "running")

    def listed(state: str) -> list[str]:
        found = jobs.get("/v1/jobs", params={"state": state, "limit": 200}).json()["jobs"]
        assert {each["state"] for each in found} <= {state}
        return [each["id"] for each in found]

    assert running in listed("running")
    assert running not in listed("cancelled")
    jobs.delete(f"/v1/jobs/{running}")
    assert running in listed("cancelled")
    assert running not in listed("running")


def test_zip_without_seeking(jobs: TestClient) -> None:
    """As a program that streams writes it: sizes come after the data."""
    import zipfile

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError("it is a pipe")

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", DOT)
    found = done(jobs, params={"model": "tiny"}, content=pipe.getvalue(), headers=ZIP)
    assert list(found) == ["a.png"]
    assert "error" not in found["a.png"]


def test_images_that_fail_are_counted_from_zero(tmp_path: Path) -> None:
    text = TestClient(create_app(Settings(jobs=tmp_path), [])).get("/metrics").text
    assert 'gradcam_job_items_total{outcome="failed"} 0.0' in text


def test_images_of_jobs_and_unfinished_jobs_are_counted(jobs: TestClient) -> None:
    def counted() -> dict[str, float]:
        text = jobs.get("/metrics").text
        found = re.findall(r'^gradcam_job(?:s|_items_total){\w+="(\w+)"} (\S+)$', text, re.M)
        return {name: float(value) for name, value in found}

    before = counted()
    sent = instances({"good": DOT, "bad": b"no image"})
    done(jobs, json={"model": "tiny", "instances": sent})
    after = counted()
    assert after["done"] == before["done"] + 1
    assert after["failed"] == before["failed"] + 1
    assert {"waiting", "running"} <= after.keys()
