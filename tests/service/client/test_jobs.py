"""Jobs through the Python client, against a small server that keeps the contract."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import zipfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from service.client import (
    AsyncClient,
    AsyncJob,
    Client,
    Job,
    NotFinished,
    NotFound,
    ServiceError,
    UnexpectedAnswer,
    Unreachable,
)
from service.client.job_calls import Rhythm
from tests.service.client.conftest import Clock
from tests.service.client.scripted import Asked, Reply, Script, in_json, problem, scripted
from tests.service.client.test_many import explained
from tests.waiting import until

NDJSON = {"Content-Type": "application/x-ndjson"}
EXPLAINED = json.loads(explained(Asked("", "", "", {}, {}, b"3")).body)["explanations"][0]


class Jobs:
    """A service of jobs, of which each look at one finishes `pace` items."""

    def __init__(self, pace: int = 2) -> None:
        self.pace = pace
        self.jobs: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, str] = {}
        self.bodies: list[bytes] = []
        self.trouble: list[tuple[str, Reply]] = []
        """What answers the next request whose path ends so, instead."""

    def __call__(self, asked: Asked) -> Reply:
        for turn, (ending, reply) in enumerate(self.trouble):
            if asked.path.endswith(ending):
                del self.trouble[turn]
                if asked.method == "POST" and reply.reset:
                    self._accept(asked)  # it got there; the answer did not get back
                return reply
        parts = asked.path.strip("/").split("/", 4)[2:]
        if not parts:
            return self._accept(asked) if asked.method == "POST" else self._list(asked)
        job = self.jobs.get(parts[0])
        if job is None:
            return problem(404, f"there is no job {parts[0]!r}")
        if asked.method == "DELETE":
            if asked.query.get("purge") == ["true"]:
                del self.jobs[parts[0]]
                return Reply(204)
            job["state"] = "cancelled" if job["state"] != "done" else "done"
            return in_json(self.document(job))
        if len(parts) == 1:
            self._work(job)
            return in_json(self.document(job), Retry_After="1")
        if parts[1] == "events":
            return Reply(headers={"Content-Type": "text/event-stream"}, chunks=self._events(job))
        if parts[1] == "archive":
            if job["state"] == "running":
                return problem(409, "the job has not ended", Retry_After="3")
            return Reply(headers={"Content-Type": "application/zip"}, body=self._archive(job))
        if len(parts) == 3:
            return self._result(job, parts[2], asked)
        after, limit = int(asked.query["after"][0]), int(asked.query["limit"][0])
        lines = job["results"][after : after + limit]
        headers = {**NDJSON, "X-Next-Cursor": str(after + len(lines))}
        return Reply(headers=headers, body=b"".join(lines))

    def document(self, job: dict[str, Any]) -> dict[str, Any]:
        failed = sum(b'"problem"' in line for line in job["results"])
        total, finished = len(job["items"]), len(job["results"])
        return {
            "id": job["id"],
            "state": job["state"],
            "model": job["model"],
            "parameters": job["parameters"],
            "counts": {
                "total": total,
                "done": finished - failed,
                "failed": failed,
                "left": total - finished,
            },
            "created": "2026-11-21T20:00:00Z",
        }

    def _accept(self, asked: Asked) -> Reply:
        key = asked.headers["idempotency-key"]
        if key not in self.keys:
            self.bodies.append(asked.body)
            if asked.headers["content-type"] == "application/x-ndjson":
                items = [json.loads(line)["id"] for line in asked.body.splitlines()]
            else:
                items = zipfile.ZipFile(BytesIO(asked.body)).namelist()
            self.keys[key] = f"j{len(self.jobs)}"
            self.jobs[self.keys[key]] = {
                "id": self.keys[key],
                "items": items,
                "results": [],
                "state": "running",
                "model": asked.query.pop("model", ["first"])[0],
                "parameters": {name: values[0] for name, values in asked.query.items()},
            }
        job = self.jobs[self.keys[key]]
        return in_json(self.document(job), 202, Location=f"/v1/jobs/{job['id']}", Retry_After="1")

    def _list(self, asked: Asked) -> Reply:
        names = sorted(self.jobs, reverse=True)
        before = asked.query.get("before")
        left = [name for name in names if before is None or name < before[0]]
        states = asked.query.get("state")
        left = [name for name in left if states is None or self.jobs[name]["state"] in states]
        page = left[: int(asked.query["limit"][0])]
        answer: dict[str, Any] = {"jobs": [self.document(self.jobs[name]) for name in page]}
        if len(left) > len(page):
            more = f"&state={states[0]}" if states else ""
            answer["next"] = f"/v1/jobs?before={page[-1]}&limit={len(page)}{more}"
        return in_json(answer)

    def _work(self, job: dict[str, Any]) -> None:
        if job["state"] != "running":
            return
        done = len(job["results"])
        for index in range(done, min(done + self.pace, len(job["items"]))):
            item = job["items"][index]
            line: dict[str, Any] = {"cursor": index + 1, "index": index, "item": item}
            if "bad" in item:
                sentence = f"{item} is not a photo"
                line["error"] = sentence
                line["problem"] = json.loads(problem(422, sentence).body)
            else:
                line["prediction"] = {"instance": 0, "classes": []}
                line["explanations"] = [EXPLAINED]
            job["results"].append(json.dumps(line).encode() + b"\n")
        job["state"] = "done" if len(job["results"]) == len(job["items"]) else "running"

    def _events(self, job: dict[str, Any]) -> Iterator[bytes]:
        yield b": hello\n\n"
        while True:
            data = json.dumps(self.document(job))
            if job["state"] != "running":
                yield f"event: progress\ndata: {data}\n\n".encode()
                yield f"event: end\ndata: {data}\n\n".encode()
                return
            yield f"event: progress\ndata: {data}\n\n".encode()
            self._work(job)

    def _archive(self, job: dict[str, Any]) -> bytes:
        file = BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("results.ndjson", b"".join(job["results"]))
        return file.getvalue()

    def _result(self, job: dict[str, Any], item: str, asked: Asked) -> Reply:
        if item not in job["items"]:
            return problem(404, f"the job has no item {item!r}")
        index = job["items"].index(item)
        if index >= len(job["results"]):
            return problem(409, f"{item} is not finished", Retry_After="2")
        if asked.headers["accept"].startswith("image/"):
            return Reply(headers={"Content-Type": asked.headers["accept"]}, body=b"picture")
        return Reply(headers={"Content-Type": "application/json"}, body=job["results"][index])


class Awaited:
    """What an AsyncClient or AsyncJob does, waited for: one test then holds for both."""

    def __init__(self, runner: asyncio.Runner, real: Any) -> None:
        self._runner = runner
        self._real = real

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._real, name)
        return self._called(value) if callable(value) else value

    def __repr__(self) -> str:
        return repr(self._real)

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if isinstance(result, AsyncIterator):
                return self._each(result)

            async def within() -> Any:
                return await result

            return self._wrapped(self._runner.run(within()))

        return call

    def _each(self, results: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(results, None)

        try:
            while (each := self._runner.run(following())) is not None:
                yield self._wrapped(each)
        finally:
            self._runner.run(results.aclose())

    def _wrapped(self, value: Any) -> Any:
        return Awaited(self._runner, value) if isinstance(value, AsyncJob) else value


@contextmanager
def waiting(address: str, **options: Any) -> Iterator[Client]:
    with Client(address, **options) as client:
        yield client


@contextmanager
def awaiting(address: str, **options: Any) -> Iterator[Any]:
    with asyncio.Runner() as runner:
        client = AsyncClient(address, **options)
        runner.run(client.__aenter__())
        try:
            yield Awaited(runner, client)
        finally:
            runner.run(client.__aexit__(None, None, None))


both = pytest.mark.parametrize("open_client", [waiting, awaiting])


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def script(jobs: Jobs) -> Iterator[Script]:
    with scripted(jobs) as script:
        yield script
        script.until_unconnected()


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    (tmp_path / "cats").mkdir()
    paths = [tmp_path / "cats" / name for name in ("a.jpg", "b bad?.jpg", "č.jpg", "d.jpg", "e")]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


@both
def test_a_job_from_paths_to_results(
    open_client: Any, script: Script, jobs: Jobs, photos: list[Path]
) -> None:
    with open_client(script.address) as client:
        job = client.submit(photos, model="m", fit="squash", target=["tabby", {"class": 3}])
        assert (job.id, job.state, job.counts.total) == ("j0", "running", 5)
        assert job.document.created == datetime(2026, 11, 21, 20, tzinfo=UTC)
        results = list(job.results())
        assert job.document.ended
    assert script.asked[0].query["target"] == ["tabby", '{"class": 3}']
    assert job.document.model == "m"
    sent = [json.loads(line) for line in jobs.bodies[0].splitlines()]
    assert [base64.b64decode(each["image"]["b64"]).decode() for each in sent] == [
        path.name for path in photos
    ]
    assert [result.item for result in results] == [str(path) for path in photos]
    assert [(result.cursor, result.index) for result in results] == [(n + 1, n) for n in range(5)]
    for result in results:
        if "bad" in result.item:
            assert isinstance(result.failure, ServiceError)
            assert (str(result.failure), result.failure.status) == (
                f"{result.item} is not a photo",
                422,
            )
            assert (result.explanations, result.prediction) == ([], None)
        else:
            assert result.failure is None
            assert result.explanations[0].map.item() == 1
            assert result.prediction
    assert job.counts.model_dump() == {"total": 5, "done": 4, "failed": 1, "left": 0}


@both
def test_what_a_job_can_be_made_of(
    open_client: Any, script: Script, jobs: Jobs, photos: list[Path], tmp_path: Path
) -> None:
    archive = tmp_path / "photos.ZIP"
    with zipfile.ZipFile(archive, "w") as file:
        for path in photos:
            file.write(path, path.name)
        file.writestr("large", b"x" * 300_000)
    manifest = tmp_path / "photos.jsonl"
    manifest.write_text('{"id": "1", "image": {"path": "a.jpg"}}\n')
    with open_client(script.address) as client:
        assert client.submit(archive, method="layercam").counts.total == 6
        assert client.submit(str(manifest)).counts.total == 1
        assert client.submit({"x": photos[0], "y": b"2"}).counts.total == 2
        assert client.submit({"image": path, "id": path.name} for path in photos).counts.total == 5
        assert client.submit(["https://a.example/b.png", "s3://b/c.png"]).counts.total == 2
    first, second, third, _, fifth = script.asked
    assert first.headers["content-type"] == "application/zip"
    assert first.query == {"method": ["layercam"]}
    assert first.headers["content-length"] == str(archive.stat().st_size)
    assert first.body == archive.read_bytes()
    assert (second.headers["content-type"], second.body) == (
        "application/x-ndjson",
        manifest.read_bytes(),
    )
    assert [json.loads(line)["id"] for line in third.body.splitlines()] == ["x", "y"]
    assert [json.loads(line) for line in fifth.body.splitlines()] == [
        {"id": "https://a.example/b.png", "image": {"url": "https://a.example/b.png"}},
        {"id": "s3://b/c.png", "image": {"uri": "s3://b/c.png"}},
    ]


@both
@pytest.mark.parametrize(
    ("photos", "error", "said"),
    [
        ("cat.jpg", ValueError, "'cat.jpg' is neither an archive nor a manifest"),
        (b"photo", TypeError, "give a list"),
        ("no/such.zip", FileNotFoundError, "no/such.zip"),
        (["no/such.png"], FileNotFoundError, "no/such.png"),
        ([{"id": "1"}], ValueError, "instance 0 has no image"),
    ],
)
def test_what_no_job_can_be_made_of(
    open_client: Any, jobs: Jobs, photos: Any, error: type[Exception], said: str
) -> None:
    with scripted(lambda asked: in_json({})) as script, open_client(script.address) as client:
        with pytest.raises(error, match=said):
            client.submit(photos)
        with pytest.raises(ValueError, match="target is an empty list"):
            client.submit([b"1"], target=[])


@both
def test_a_job_is_submitted_once_however_often_it_is_sent(
    open_client: Any, script: Script, jobs: Jobs, photos: list[Path]
) -> None:
    jobs.trouble = [
        ("/jobs", problem(503, "full", Retry_After="0")),
        ("/jobs", Reply(reset=True)),
    ]
    with open_client(script.address) as client:
        job = client.submit(iter(photos))
        assert len(script.asked) == 3
        assert len({asked.headers["idempotency-key"] for asked in script.asked}) == 1
        assert len({asked.body for asked in script.asked}) == 1
        assert list(jobs.jobs) == [job.id]
        assert client.submit(photos).id != job.id  # another call, another job
        mine = client.submit(photos, idempotency_key="mine")
        assert client.submit(photos, idempotency_key="mine").id == mine.id


@pytest.mark.slow
@both
def test_results_go_on_from_where_a_connection_broke(
    open_client: Any, script: Script, jobs: Jobs
) -> None:
    jobs.pace = 3
    with open_client(script.address) as client:
        job = client.submit([b"x"] * 10)
        whole = Reply(headers=NDJSON, body=b"x" * 1000, cut=10)
        jobs.trouble = [
            ("/results", Reply(reset=True)),
            ("/results", whole),
            ("/results", problem(429, "full", Retry_After="0")),
            ("/j0", Reply(reset=True)),
        ]
        found = job.results(page=2)
        assert [next(found).cursor for _ in range(3)] == [1, 2, 3]
        jobs.trouble = [("/results", Reply(reset=True))]
        assert [result.cursor for result in found] == [4, 5, 6, 7, 8, 9, 10]
        assert [result.cursor for result in job.results(after=8)] == [9, 10]
        assert list(job.results(after=10)) == []
    # Never more at a time than a page, and each page from the cursor on.
    assert {asked.query["limit"][0] for asked in script.asked if "limit" in asked.query} == {
        "2",
        "50",
    }


@both
def test_events_until_the_end_through_broken_connections(
    open_client: Any, script: Script, jobs: Jobs
) -> None:
    with open_client(script.address, retries=3) as client:  # of failures in a row
        job = client.submit([b"x"] * 10)
        first = json.dumps(jobs.document(jobs.jobs["j0"])).encode()
        event = b"event: progress\ndata: %s\n\n" % first
        kind = {"Content-Type": "text/event-stream"}
        jobs.trouble = [
            ("/events", Reply(headers=kind, chunks=[event, event], cut=1)),
            ("/events", Reply(reset=True)),
            ("/events", problem(503, "restarting", Retry_After="0")),
            ("/events", Reply(headers=kind, chunks=[event])),
        ]
        seen = list(job.events())
        assert [each.counts.done for each in seen] == [0, 2, 4, 6, 8, 10]
        assert [each.state for each in seen[-2:]] == ["running", "done"]
        assert job.document == seen[-1]
        assert [each.state for each in job.events()] == ["done"]


@both
def test_events_that_never_come_end_in_an_error(
    open_client: Any, script: Script, jobs: Jobs
) -> None:
    with open_client(script.address, retries=2) as client:
        job = client.submit([b"x"])
        empty = Reply(headers={"Content-Type": "text/event-stream"}, chunks=[])
        jobs.trouble = [("/events", empty)] * 3
        with pytest.raises(Unreachable, match="after 3 tries: the stream of events broke off"):
            list(job.events())
        assert not jobs.trouble
        jobs.trouble = [("/events", in_json({}))]
        with pytest.raises(Unreachable, match="text/event-stream"):
            list(job.events())
        jobs.trouble = [("/events", problem(403, "not yours"))]
        with pytest.raises(ServiceError, match="not yours"):
            list(job.events())


@both
def test_who_stops_listening_leaves_no_connection(
    open_client: Any, script: Script, jobs: Jobs
) -> None:
    with open_client(script.address) as client:
        job = client.submit([b"x"] * 10)
        left = threading.Event()

        def held() -> Iterator[bytes]:
            for turn, chunk in enumerate(jobs._events(jobs.jobs["j0"])):
                yield chunk
                if turn == 1:
                    left.wait(10)

        kind = {"Content-Type": "text/event-stream"}
        jobs.trouble = [("/events", Reply(headers=kind, chunks=held()))]
        events = job.events()
        next(events)
        assert script.connections == 1
        events.close()
        left.set()
        until(lambda: not script.connections, 5)


@both
def test_wait(open_client: Any, script: Script, jobs: Jobs, clock: Clock) -> None:
    with open_client(script.address) as client:
        job = client.submit([b"x"] * 10)
        assert job.wait(timeout=30).state == "done"
        assert job.wait().counts.done == 10
        jobs.pace = 0
        job = client.submit([b"x"] * 10)
        before = clock.now
        with pytest.raises(TimeoutError, match=r"job j1 is running after 0\.5 s: 0 of 10 done"):
            job.wait(timeout=0.5)
        assert clock.now - before == pytest.approx(0.5)


def test_looks_become_rarer_up_to_what_the_service_says() -> None:
    from service.client.responses import Response

    def pauses(count: int, **headers: str) -> list[float]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        rhythm = Rhythm()
        return [rhythm.pause(Response(200, names, b"")) for _ in range(count)]

    assert pauses(6, retry_after="1") == [0.1, 0.2, 0.4, 0.8, 1, 1]
    assert pauses(3, retry_after="0") == [0.1, 0.1, 0.1]
    assert pauses(9)[-2:] == [10, 10]
    assert pauses(9, retry_after="60")[-1] == 10


@both
def test_one_result(open_client: Any, script: Script, jobs: Jobs) -> None:
    items = ["cats/a b.jpg", "/abs/ä.jpg", "../up?.jpg", "./#1%.jpg"]
    with open_client(script.address) as client:
        job = client.submit(dict.fromkeys(items, b"x"))
        with pytest.raises(NotFinished, match="not finished") as caught:
            job.result(items[0])
        assert caught.value.retry_after == 2
        job.wait()
        for index, item in enumerate(items):
            result = job.result(item)
            assert (result.item, result.index) == (item, index)
        assert job.picture(items[0], "image/webp") == b"picture"
        assert script.asked[-1].headers["accept"] == "image/webp"
        with pytest.raises(NotFound, match="no item 'ghost'"):
            job.result("ghost")


@both
def test_names_of_dots_lead_nowhere_else(open_client: Any) -> None:
    with (
        scripted(lambda asked: problem(404, "there is none")) as script,
        open_client(script.address) as client,
    ):
        for name in (".", ".."):
            for ask in (client.job, client.model, client.layers):
                with pytest.raises(NotFound, match="there is none"):
                    ask(name)
    paths = ["/v1/jobs/{}", "/v1/models/{}", "/v1/models/{}/layers"]
    assert [asked.raw_path for asked in script.asked] == [
        path.format(name) for name in ("%2E", "%2E%2E") for path in paths
    ]


@both
def test_names_that_are_empty_are_not_sent(open_client: Any, script: Script) -> None:
    with open_client(script.address) as client:
        job = client.submit([b"x"])
        for said, ask in (
            ("the id of the job is empty", client.job),
            ("the id of the item is empty", job.result),
            ("the id of the item is empty", job.picture),
            ("the name of the model is empty", client.model),
        ):
            with pytest.raises(ValueError, match=said):
                ask("")
    assert len(script.asked) == 1


@both
def test_an_archive_is_there_once_it_is_whole(
    open_client: Any, script: Script, jobs: Jobs, tmp_path: Path
) -> None:
    target = tmp_path / "out.zip"
    target.write_bytes(b"old")
    with open_client(script.address, retries=2) as client:
        job = client.submit([b"x"] * 3)
        with pytest.raises(NotFinished, match="has not ended"):
            job.archive(target)
        job.wait()
        cut = Reply(headers={"Content-Type": "application/zip"}, body=b"y" * 90_000, cut=80_000)
        jobs.trouble = [("/archive", cut)] * 3
        with pytest.raises(Unreachable):
            job.archive(target)
        assert target.read_bytes() == b"old"
        jobs.trouble = [("/archive", cut)]
        assert job.archive(str(target)) == target
        assert target.read_bytes().startswith(b"PK")  # nothing is left of what broke off
        with zipfile.ZipFile(target) as file:
            assert len(file.read("results.ndjson").splitlines()) == 3
        assert script.asked[-1].query == {"format": ["zip"]}
        job.archive(tmp_path / "table.parquet")
        assert script.asked[-1].query == {"format": ["parquet"]}
        job.archive(tmp_path / "other", format="parquet")
        assert script.asked[-1].query == {"format": ["parquet"]}
        with pytest.raises(ValueError, match=r"the format of 'out\.tar' is not known"):
            job.archive(tmp_path / "out.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out.zip", "table.parquet"]


@both
def test_cancel_purge_and_find_again(open_client: Any, script: Script, jobs: Jobs) -> None:
    with open_client(script.address) as client:
        for count in (1, 2, 3, 4, 5):
            client.submit([b"x"] * count)
        job = client.job("j3")
        assert job.counts.total == 4
        assert job.cancel().state == "cancelled"
        assert job.state == "cancelled"
        assert job.refresh().state == "cancelled"
        assert [result.cursor for result in job.results()] == [1, 2]  # they stay
        assert [each.id for each in client.jobs(page=2)] == ["j4", "j3", "j2", "j1", "j0"]
        assert [each.id for each in client.jobs("running", page=2)] == ["j4", "j2", "j1", "j0"]
        job.purge()
        with pytest.raises(NotFound, match="there is no job 'j3'"):
            job.refresh()
        with pytest.raises(NotFound):
            client.job("j3")
        assert "j2" in repr(client.job("j2"))
        assert isinstance(client.job("j2").counts.total, int)


@both
def test_a_list_that_leads_elsewhere_is_asked_here(
    open_client: Any, script: Script, jobs: Jobs
) -> None:
    there = in_json({"jobs": [], "next": "http://127.0.0.1:9/steal?before=j9&limit=2"})
    jobs.trouble = [("/jobs", there)]
    with open_client(script.address, key="secret") as client:
        assert list(client.jobs()) == []
    assert [asked.path for asked in script.asked] == ["/v1/jobs", "/v1/jobs"]


@both
def test_what_is_no_job_is_told_as_that(open_client: Any) -> None:
    with scripted(lambda asked: in_json({"id": "x"})) as script:
        with open_client(script.address) as client, pytest.raises(UnexpectedAnswer, match="state"):
            client.job("x")
        script.until_unconnected()


def test_closing_an_iterator_that_has_not_begun_is_fine() -> None:
    with scripted(Jobs()) as script, Client(script.address) as client:
        job = client.submit([b"x"])
        for iterator in (job.events(), job.results(), client.jobs()):
            with closing(iterator):
                pass
        assert isinstance(job, Job)
        assert len(script.asked) == 1

    async def begin() -> None:
        async with AsyncClient("http://127.0.0.1:9") as asking, aclosing(asking.jobs()):
            pass

    asyncio.run(begin())
