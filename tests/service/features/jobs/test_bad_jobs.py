"""Jobs that cannot be read, or ask for what there is not: each gets its problem, and leaves nothing
behind."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.features.jobs.database_tables import CHUNK
from service.settings import Settings
from tests.service.conftest import encoded, noise
from tests.service.features.jobs.forms import (
    FORMS,
    GZIP,
    NDJSON,
    TAR,
    ZIP,
    accepted,
    check,
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

DOT = encoded(noise(9, 9))
GOOD = {"image": inline(DOT)}
TINILY = {"model": "tiny"}
JSON = {"Content-Type": "application/json"}

pytestmark = pytest.mark.usefixtures("nothing_is_left")


# Nothing in it

EMPTY: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "JSON": ({"json": {"instances": []}}, 400, "at least 1 item", "/instances"),
    "JSON without": ({"json": {}}, 400, "instances", "/instances"),
    "no JSON": ({"content": b"", "headers": JSON}, 400, "not JSON", ""),
    "NDJSON": ({"content": b"", "headers": NDJSON}, 400, "no images", ""),
    "NDJSON of blank lines": ({"content": b"\n \n\r\n", "headers": NDJSON}, 400, "no images", ""),
    "form": (raw_form([]), 400, "no images", ""),
    "form of fields": (
        raw_form([('form-data; name="model"', b"tiny")]),
        400,
        "no images",
        "",
    ),
    "no form": (
        {"content": b"", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        400,
        "ends in the middle",
        "",
    ),
    "zip": ({"content": zipped({}), "headers": ZIP}, 400, "no images", ""),
    "zip of folders": ({"content": zipped({"a/": b""}), "headers": ZIP}, 400, "no images", ""),
    "zip of hidden files": (
        {"content": zipped({".a": b"x"}), "headers": ZIP},
        400,
        "no images",
        "",
    ),
    "tar": ({"content": tarred({}), "headers": TAR}, 400, "no images", ""),
    "tar.gz": ({"content": tarred({}, "w:gz"), "headers": GZIP}, 400, "no images", ""),
}


@pytest.mark.parametrize("case", EMPTY)
def test_a_job_of_nothing(jobs: TestClient, case: str) -> None:
    request, status, words, pointer = EMPTY[case]
    check(jobs.post("/v1/jobs", **request), status, "malformed-request", words, pointer=pointer)


@pytest.mark.parametrize(
    ("headers", "kind"),
    [(ZIP, "zip"), (TAR, "tar"), (GZIP, "tar")],
    ids=["zip", "tar", "tar.gz"],
)
def test_an_empty_body_is_no_archive(jobs: TestClient, headers: dict[str, str], kind: str) -> None:
    response = jobs.post("/v1/jobs", content=b"", headers=headers)
    check(response, 422, "invalid-archive", f"not a readable {kind}")


# Ids


@pytest.mark.parametrize("kind", FORMS)
def test_two_items_of_one_id(jobs: TestClient, kind: str) -> None:
    names = ["a", "b", "a"]
    if kind == "json":
        sent = [{"id": name, **GOOD} for name in names]
        request: dict[str, Any] = {"json": {"instances": sent}}
    elif kind == "ndjson":
        request = {"content": lines([{"id": name, **GOOD} for name in names]), "headers": NDJSON}
    elif kind == "form":
        request = {"files": [("image", (name, DOT)) for name in names]}
    elif kind == "zip":
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name in "ab":
                archive.writestr(name, DOT)
            with pytest.warns(UserWarning, match="Duplicate"):
                archive.writestr("a", DOT)
        request = {"content": file.getvalue(), "headers": ZIP}
    else:
        one, other = tarred({"a": DOT, "b": DOT}), tarred({"a": DOT})
        whole = one[: 4 * 512] + other
        request = {"content": whole, "headers": TAR}
        if kind == "tar.gz":
            request = {"content": gzip.compress(whole), "headers": GZIP}
    check(jobs.post("/v1/jobs", **request), 422, "duplicate-id", "two instances have the id 'a'")


def test_two_items_of_one_id_far_apart(jobs: TestClient) -> None:
    """They are written some thousands at a time."""
    sent = [{"id": f"{at}.png", "image": {"path": "x"}} for at in range(CHUNK + 10)]
    sent.append({"id": "7.png", "image": {"path": "x"}})
    response = jobs.post("/v1/jobs", content=lines(sent), headers=NDJSON)
    check(response, 422, "duplicate-id", "'7.png'")


def test_a_number_that_another_has_taken(jobs: TestClient) -> None:
    sent = [{"id": "1", **GOOD}, GOOD]
    response = jobs.post("/v1/jobs", json={"instances": sent})
    check(response, 422, "duplicate-id", "'1'")


def test_ids_that_cannot_be(jobs: TestClient) -> None:
    for name in ("", "x" * 1001):
        for request in (
            {"json": {"instances": [{"id": name, **GOOD}]}},
            {"content": lines([{"id": name, **GOOD}]), "headers": NDJSON},
        ):
            response = jobs.post("/v1/jobs", **request)
            assert response.status_code == 400, response.text
            words = "at most 1000 characters" if name else "at least 1 character"
            assert words in response.json()["detail"]
    long = {"x" * 1000: DOT}
    assert list(done(jobs, params=TINILY, **form_of("json", long))) == list(long)
    named = zipped({"y" * 1001: DOT})
    response = jobs.post("/v1/jobs", content=named, headers=ZIP)
    check(response, 400, "malformed-request", "an id of 1001 characters", "1 to 1000")


def test_names_that_are_no_text(jobs: TestClient) -> None:
    """A tar of another century has names in Latin-1: two that differ stay two."""
    file = io.BytesIO()
    with tarfile.open(
        fileobj=file, mode="w", format=tarfile.GNU_FORMAT, encoding="latin-1"
    ) as archive:
        for name in ("caf\xe9.png", "caf\xe8.png"):
            entry = tarfile.TarInfo(name)
            entry.size = len(DOT)
            archive.addfile(entry, io.BytesIO(DOT))
    found = done(jobs, params=TINILY, content=file.getvalue(), headers=TAR)
    assert sorted(found) == ["caf\\udce8.png", "caf\\udce9.png"]
    sent = [{"id": "zero\x00.png", **GOOD}]
    assert list(done(jobs, params=TINILY, json={"instances": sent})) == ["zero\ufffd.png"]


# Requests that cannot be read

RAW: dict[str, tuple[dict[str, Any], int, str, list[str], str]] = {
    "no Content-Type": (
        {"content": DOT},
        415,
        "unsupported-media-type",
        ["no Content-Type", "application/x-ndjson", "application/zip"],
        "",
    ),
    "an image": (
        {"content": DOT, "headers": {"Content-Type": "image/png"}},
        415,
        "unsupported-media-type",
        ["'image/png'", "multipart/form-data"],
        "",
    ),
    "a form without a boundary": (
        {"content": b"x", "headers": {"Content-Type": "multipart/form-data"}},
        400,
        "malformed-request",
        ["no boundary"],
        "",
    ),
    "a form with an endless boundary": (
        {
            "content": b"x",
            "headers": {"Content-Type": f"multipart/form-data; boundary={'x' * 300}"},
        },
        400,
        "malformed-request",
        ["the form cannot be read"],
        "",
    ),
    "a form with another boundary": (
        {"content": b"--other\r\n", "headers": {"Content-Type": "multipart/form-data; boundary=x"}},
        400,
        "malformed-request",
        ["the form cannot be read"],
        "",
    ),
    "a form that breaks off": (
        raw_form([('form-data; name="image"; filename="a.png"', DOT)], end=b""),
        400,
        "malformed-request",
        ["ends in the middle of a part"],
        "",
    ),
    "a form that breaks off in a head": (
        raw_form([], end=b'--line\r\nContent-Disposition: form-data; name="ima'),
        400,
        "malformed-request",
        ["ends in the middle"],
        "",
    ),
    "a part without a name": (
        raw_form([('form-data; filename="a.png"', DOT)]),
        400,
        "malformed-request",
        ["a part of the form has no name"],
        "",
    ),
    "a part that is an attachment": (
        raw_form([('attachment; name="image"; filename="a.png"', DOT)]),
        400,
        "malformed-request",
        ["a part of the form has no name"],
        "",
    ),
    "an image that is not a file": (
        raw_form([('form-data; name="image"', DOT)]),
        400,
        "malformed-request",
        ["no filename"],
        "/form/image/0",
    ),
    "a file that is not an image": (
        {"files": {"archive": ("a.zip", zipped({"a.png": DOT}))}},
        422,
        "unknown-parameter",
        ["a file 'archive'", "named 'image'", "an archive is sent as the body"],
        "/form/archive",
    ),
    "a part with a long head": (
        raw_form([(f'form-data; name="{"x" * 20_000}"', b"")]),
        400,
        "malformed-request",
        [],
        "",
    ),
    "an unknown field": (
        {"data": {"colour": "x"}, "files": [("image", ("a", DOT))]},
        422,
        "unknown-parameter",
        ["'colour'", "colormap"],
        "/form/colour",
    ),
    "broken JSON": (
        {"content": b'{"instances": [', "headers": JSON},
        400,
        "malformed-request",
        ["not JSON", "EOF"],
        "",
    ),
    "JSON in Latin-1": (
        {"content": b'{"model": "caf\xe9"}', "headers": JSON},
        400,
        "malformed-request",
        ["not JSON"],
        "",
    ),
    "nested brackets": (
        {"content": b"[" * 100_000 + b"]" * 100_000, "headers": JSON},
        400,
        "malformed-request",
        ["not JSON", "recursion"],
        "",
    ),
    "JSON that is not an object": (
        {"content": b"[1]", "headers": JSON},
        400,
        "malformed-request",
        ["at /:"],
        "",
    ),
}


@pytest.mark.parametrize("case", RAW)
def test_bodies(jobs: TestClient, case: str) -> None:
    request, status, kind, words, pointer = RAW[case]
    check(jobs.post("/v1/jobs", **request), status, kind, *words, pointer=pointer)


TYPES: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "no image": ({"id": "a"}, 400, "/image", "missing"),
    "a number as image": ({"image": 7}, 400, "/image", "object"),
    "text as image": ({"image": "x"}, 400, "/image", "object"),
    "an image without anything": ({"image": {}}, 400, "/image", "b64, url, path or uri"),
    "two images in one": (
        {"image": {"b64": "", "path": "x"}},
        400,
        "/image",
        "b64, url, path or uri",
    ),
    "a number in base64": ({"image": {"b64": 7}}, 400, "/image/b64", "should be text"),
    "an empty path": ({"image": {"path": ""}}, 400, "/image/path", "at least 1"),
    "a long path": ({"image": {"path": "x" * 2001}}, 400, "/image/path", "at most 2000"),
    "a long uri": ({"image": {"uri": "x" * 2001}}, 400, "/image/uri", "at most 2000"),
    "a number as id": ({"id": 7, **GOOD}, 400, "/id", "should be text"),
    "another field": ({"ids": "a", **GOOD}, 422, "/ids", "no field 'ids'"),
    "another source": ({"image": {"file": "x"}}, 422, "/image/file", "no field 'file'"),
    "a target that is none": ({"target": {"klass": 1}, **GOOD}, 422, "/target", "no key 'klass'"),
    "a number as layer": ({"layer": 7, **GOOD}, 422, "/layer", "'7'"),
}


@pytest.mark.parametrize("case", TYPES)
def test_an_instance_of_wrong_types(jobs: TestClient, case: str) -> None:
    wrong, status, pointer, words = TYPES[case]
    body = jobs.post("/v1/jobs", json={"instances": [GOOD, wrong]})
    line = jobs.post("/v1/jobs", content=lines([GOOD, wrong]), headers=NDJSON)
    for response, where in ((body, "/instances/1"), (line, "/2")):
        problem = response.json()
        assert response.status_code == status, problem
        assert response.headers["Content-Type"] == "application/problem+json"
        assert problem["pointer"].startswith(where + pointer), problem
        assert words in problem["detail"], problem


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "not JSON"),
        (b"nonsense", "not JSON"),
        (b"\xff", "not JSON"),
        (b'{"image": {"path": "\\ud800"}}', "not JSON"),
        (b"7", "at /4"),
        (b"[]", "at /4"),
    ],
)
def test_a_bad_line(jobs: TestClient, line: bytes, words: str) -> None:
    good = lines([{"id": "a", **GOOD}, {"id": "b", **GOOD}])
    content = b"\n".join((good, line, b"never read"))  # the third is blank
    response = jobs.post("/v1/jobs", content=content, headers=NDJSON)
    check(response, 400, "malformed-request", words, pointer="/4")


def test_lines_may_be_cut_anywhere(jobs: TestClient) -> None:
    content = lines(instances({"a": DOT, "b": encoded(noise(9, 9, 1))})).rstrip()
    pieces = (content[at : at + 7] for at in range(0, len(content), 7))
    job = accepted(jobs.post("/v1/jobs", params=TINILY, content=pieces, headers=NDJSON))
    assert ended(jobs, job["id"])["counts"]["done"] == 2


def test_bad_base64_fails_alone(jobs: TestClient) -> None:
    sent = [{"id": "a", **GOOD}, {"id": "b", "image": {"b64": "?"}}]
    for request in (
        {"json": {"instances": sent}, "params": TINILY},
        {"content": lines(sent), "headers": NDJSON, "params": TINILY},
    ):
        found = done(jobs, **request)
        assert "not valid base64" in found["b"]["error"]
        assert found["b"]["problem"]["status"] == 400
        assert "error" not in found["a"]


# What is asked

PARAMETERS: dict[str, tuple[str, Any, str, str]] = {
    "parameter": ("colour", "red", "unknown-parameter", "no parameter 'colour'"),
    "label": ("target", "unicorn", "unknown-label", "'unicorn'"),
    "ambiguous label": ("target", "crane", "ambiguous-label", "134"),
    "class": ("target", 1000, "class-out-of-range", "0 to 999"),
    "layer": ("layer", "bn3", "unknown-layer", "no layer 'bn3'"),
    "method": ("method", "gradcam2", "unknown-method", "'gradcam2'"),
    "opacity": ("opacity", 2, "invalid-parameter", "from 0 to 1"),
    "output": ("output", "gif", "invalid-parameter", "'gif'"),
    "top_k": ("top_k", 0, "invalid-parameter", "from 1 to 1000"),
}


@pytest.mark.parametrize("case", PARAMETERS)
@pytest.mark.parametrize("where", ["query", "form", "parameters"])
def test_what_is_asked_is_checked_before_it_is_accepted(
    jobs: TestClient, case: str, where: str
) -> None:
    name, value, kind, words = PARAMETERS[case]
    if where == "query":
        request: dict[str, Any] = {"params": {name: value}, **form_of("zip", {"a": DOT})}
    elif where == "form":
        request = {"data": {name: str(value)}, "files": [("image", ("a", DOT))]}
    else:
        request = {"json": {"instances": [GOOD], "parameters": {name: value}}}
    check(jobs.post("/v1/jobs", **request), 422, kind, words, pointer=f"/{where}/{name}")


def test_too_many_maps(jobs: TestClient) -> None:
    query: dict[str, list[Any]] = {"target": list(range(60)), "layer": ["blocks.5", "blocks.6"]}
    response = jobs.post("/v1/jobs", params=query, **form_of("json", {"a": DOT}))
    check(response, 422, "invalid-parameter", "120 maps; at most 100")
    body = {"instances": [GOOD], "parameters": {"target": list(range(101))}}
    response = jobs.post("/v1/jobs", json=body)
    assert response.status_code == 422
    assert response.json()["pointer"] == "/parameters/target"
    assert "at most 100" in response.json()["detail"]


def test_a_question_that_no_single_parameter_is_to_blame_for(jobs: TestClient) -> None:
    query = {"method": "eigencam", "signed": "true", "smooth": "eigen"}
    response = jobs.post("/v1/jobs", params=query, **form_of("json", {"a": DOT}))
    assert response.status_code == 422, response.text
    assert "None" not in response.json().get("pointer", "")


def test_an_unknown_model(jobs: TestClient) -> None:
    for request in (
        {"params": {"model": "resnet"}, **form_of("zip", {"a": DOT})},
        {"json": {"model": "resnet", "instances": [GOOD]}},
        {"data": {"model": "resnet"}, "files": [("image", ("a", DOT))]},
    ):
        response = jobs.post("/v1/jobs", **request)
        check(response, 404, "unknown-model", "'resnet'", "efficientnet-lite0, tiny, slow")
    assert jobs.post("/v1/jobs", params={"model": ""}, json={}).status_code == 404


def test_without_any_model(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(jobs=tmp_path), ())) as client:
        response = client.post("/v1/jobs", **form_of("json", {"a": DOT}))
        check(response, 404, "unknown-model", "no model is loaded", "POST /v1/models")


@pytest.mark.parametrize("key", ["", "x" * 201, "a\tb", "caf\x7f"])
def test_idempotency_keys_that_are_none(jobs: TestClient, key: str) -> None:
    headers = {"Idempotency-Key": key}
    response = jobs.post("/v1/jobs", headers=headers, **form_of("json", {"a": DOT}))
    check(response, 400, "malformed-request", "Idempotency-Key", f"{len(key)} char", "1 to 200")


def test_an_idempotency_key_that_is_no_ascii(jobs: TestClient) -> None:
    headers = {b"idempotency-key": "café".encode("latin-1"), b"content-type": b"application/json"}
    response = jobs.post("/v1/jobs", headers=headers, content=b"{}")
    check(response, 400, "malformed-request", "printable ASCII")


QUERIES = [
    ("/v1/jobs?limit=0", "limit", "1 to 200"),
    ("/v1/jobs?limit=201", "limit", "1 to 200"),
    ("/v1/jobs?limit=-1", "limit", "1 to 200"),
    ("/v1/jobs?limit=ten", "limit", "'ten'"),
    ("/v1/jobs?limit=1e2", "limit", "'1e2'"),
    ("/v1/jobs?limit=%D9%A1", "limit", "whole number"),
    ("/v1/jobs?limit=" + "1" * 5000, "limit", "1 to 200"),
    ("/v1/jobs?limit=00000000000" + "1" * 30, "limit", "1 to 200"),
    ("/v1/jobs?limit=", "limit", "''"),
    ("/v1/jobs?state=finished", "state", "'waiting', 'running', 'done' or 'cancelled'"),
    ("/v1/jobs?state=receiving", "state", "'waiting', 'running', 'done' or 'cancelled'"),
    ("/v1/jobs?state=", "state", "''"),
    ("/v1/jobs/x/results?after=-1", "after", "0 to 2147483647"),
    ("/v1/jobs/x/results?after=2147483648", "after", "0 to 2147483647"),
    ("/v1/jobs/x/results?after=" + "0" * 5000, "after", "0 to 2147483647"),
    ("/v1/jobs/x/results?limit=10001", "limit", "1 to 10000"),
    ("/v1/jobs/x/archive?format=rar", "format", "'zip' or 'parquet'"),
    ("/v1/jobs/x/archive?format=", "format", "'zip' or 'parquet'"),
]


@pytest.mark.parametrize(("address", "name", "words"), QUERIES)
def test_nonsense_in_the_query(jobs: TestClient, address: str, name: str, words: str) -> None:
    check(jobs.get(address), 422, "invalid-parameter", name, words, pointer=f"/query/{name}")


def test_nonsense_as_purge(jobs: TestClient) -> None:
    for said in ("yes", "", "1"):
        response = jobs.delete("/v1/jobs/x", params={"purge": said})
        check(response, 422, "invalid-parameter", repr(said), pointer="/query/purge")


@pytest.mark.parametrize("name", ["x", "0" * 28, "x" * 3000, "%00", "%27%20or%201=1", "käse", "*"])
def test_an_unknown_job(jobs: TestClient, name: str) -> None:
    for verb, path in (
        ("GET", ""),
        ("GET", "/results"),
        ("GET", "/results/a"),
        ("GET", "/events"),
        ("GET", "/archive"),
        ("DELETE", ""),
        ("DELETE", "?purge=true"),
    ):
        check(jobs.request(verb, f"/v1/jobs/{name}{path}"), 404, "unknown-job", "no job")


def test_before_a_job_that_is_not_there(jobs: TestClient) -> None:
    for before in ("", "x", "\x00", "'"):
        assert jobs.get("/v1/jobs", params={"before": before, "limit": 1}).status_code == 200
    assert jobs.get("/v1/jobs?before=0").json() == {"jobs": []}


def test_an_unknown_item(jobs: TestClient) -> None:
    job = accepted(jobs.post("/v1/jobs", params=TINILY, **form_of("json", {"a": DOT})))["id"]
    ended(jobs, job)
    for name in ("b", "", "A", "a/", "%00", "x" * 3000):
        response = jobs.get(f"/v1/jobs/{job}/results/{name}")
        check(response, 404, "unknown-item", f"job {job} has no item")


def test_verbs_that_there_are_none_of(jobs: TestClient) -> None:
    for verb, path, allowed in (
        ("PUT", "/v1/jobs", "GET, HEAD, POST"),
        ("DELETE", "/v1/jobs", "GET, HEAD, POST"),
        ("POST", "/v1/jobs/x", "GET, HEAD, DELETE"),
        ("POST", "/v1/jobs/x/results", "GET, HEAD"),
        ("DELETE", "/v1/jobs/x/archive", "GET, HEAD"),
    ):
        response = jobs.request(verb, path)
        check(response, 405, "method-not-allowed", verb)
        assert response.headers["Allow"] == allowed
