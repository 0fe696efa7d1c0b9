"""Images by their address: how large, how long, what is said of the service; and in the app."""

from __future__ import annotations

import asyncio
import base64
import gzip
import socket
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from service.core.errors import BodyTooLarge, Problem, UnfetchableImage
from service.features.remote_images import fetch
from service.features.remote_images.fetch import Fetcher
from service.http.reception import Allowance, fill
from service.pipeline.instances import Instance, Remote
from service.pipeline.parameters import Parameters
from service.settings import Settings
from tests.service.conftest import encoded, noise, running_app
from tests.service.features.remote_images.sites import (
    IMAGE,
    SITE,
    Canary,
    Names,
    Page,
    Site,
    fetched,
    redirect,
)
from tests.service.http.test_bad_input import check
from tests.service.http.test_overload import FRAGILE

pytestmark = pytest.mark.contract
PHOTO = encoded(noise(8, 8))
SENT = {"image": {"b64": base64.b64encode(PHOTO).decode()}}


@pytest.fixture
def host(site: Site) -> str:
    return f"images.test:{site.server_port}"


Limits = Callable[[], list[tuple[float, bool]]]
"""Returns the time limits that downloads have set themselves, and whether each has expired."""


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    made: list[tuple[float, asyncio.Timeout]] = []

    def timeout(seconds: float) -> asyncio.Timeout:
        made.append((seconds, asyncio.timeout(seconds)))
        return made[-1][1]

    monkeypatch.setattr(fetch, "asyncio", SimpleNamespace(timeout=timeout))
    return lambda: [(seconds, limit.expired()) for seconds, limit in made]


@pytest.mark.anyio
async def test_an_image_that_is_too_large_or_broken_off_is_none(
    site: Site, host: str, limits: Limits
) -> None:
    site.pages["/1000"] = Page(bytes(1000))
    site.pages["/1001"] = Page(bytes(1001))
    site.pages["/endless"] = Page(drips=True)
    site.pages["/broken-off"] = Page(bytes(10), headers={"Content-Length": "500"})
    assert await fetched(f"https://{host}/1000", [host], max_bytes=1000) == bytes(1000)
    with pytest.raises(UnfetchableImage):
        await fetched(f"https://{host}/broken-off", [host], max_bytes=1000)
    with pytest.raises(BodyTooLarge, match="more than the 1000 bytes"):
        await fetched(f"https://{host}/1001", [host], max_bytes=1000)
    names, allowance = Names(images_test=[[SITE]]), Allowance(10)
    async with Fetcher(hosts=[host], max_bytes=10, resolver=names) as fetcher:
        with pytest.raises(BodyTooLarge):
            await fetcher.fetch(f"https://{host}/endless", allowance)
    # It ends at the first part that is too much, not when its time is up.
    assert -100 < allowance.left < 0
    assert limits()[-1] == (fetch.SECONDS, False)
    await site.hang_up()


@pytest.mark.anyio
async def test_all_images_of_a_request_share_what_it_may_have(site: Site, host: str) -> None:
    site.pages["/600"] = Page(bytes(600))
    site.pages["/300"] = Page(bytes(300))
    addresses = [f"https://{host}/{size}" for size in (600, 600, 300)]
    instances: list[Instance[Parameters]] = [
        Instance(turn, None, Remote(url), f"/instances/{turn}/image/url", Parameters())
        for turn, url in enumerate(addresses)
    ]
    instances.append(Instance(3, None, IMAGE, "/instances/3/image/b64", Parameters()))
    async with Fetcher(
        hosts=[host], max_bytes=1000, resolver=Names(images_test=[[SITE]])
    ) as fetcher:
        for _ in range(2):  # what one request had is not missing to the next
            images = [each.image for each in await fill(instances, fetcher.fetch, Allowance(1000))]
            assert images[3] == IMAGE
            refused = [each for each in images if isinstance(each, BodyTooLarge)]
            assert refused
            assert all(each.pointer in addresses_of(instances) for each in refused)
            had = sum(len(each) for each in images[:3] if isinstance(each, bytes))
            assert 0 < had <= 1000
    await site.hang_up()


def addresses_of(instances: list[Instance[Parameters]]) -> list[str]:
    return [each.pointer for each in instances[:3]]


@pytest.mark.anyio
async def test_nothing_is_unpacked_and_nothing_packed_is_asked_for(site: Site, host: str) -> None:
    packed = gzip.compress(bytes(50_000_000))
    site.pages["/bomb"] = Page(packed, headers={"Content-Encoding": "gzip"})
    assert await fetched(f"https://{host}/bomb", [host]) == packed
    asked = site.heads[0].get("accept-encoding", "identity")
    assert asked == "identity", "a site may pack an image, and nobody would unpack it"


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/never", "/drips"])
async def test_a_site_that_never_ends_is_a_problem_in_time(
    site: Site, host: str, path: str, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SECONDS", 0.3)
    site.pages["/never"] = Page(after=None)
    site.pages["/drips"] = Page(drips=True)
    with pytest.raises(UnfetchableImage, match=r"had not arrived after 0.3 s"):
        await asyncio.wait_for(fetched(f"https://{host}{path}", [host]), 10)
    assert limits() == [(0.3, True)]
    await site.hang_up()


@pytest.mark.anyio
async def test_a_port_that_never_says_a_word_is_a_problem_in_time(
    site: Site, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SECONDS", 0.3)
    with socket.create_server((SITE, 0)) as mute:
        host = f"images.test:{mute.getsockname()[1]}"
        async with Fetcher(
            hosts=[host], max_bytes=1000, resolver=Names(images_test=[[SITE]])
        ) as fetcher:
            with pytest.raises(UnfetchableImage, match=r"had not arrived after 0.3 s"):
                await asyncio.wait_for(fetcher.fetch(f"https://{host}/", Allowance(1000)), 10)
            assert limits() == [(0.3, True)]
            caller, _ = mute.accept()
            with caller:
                caller.settimeout(5)
                while await asyncio.to_thread(caller.recv, 65_536):
                    """Until the fetcher hangs up, which it does before it is closed itself."""


@pytest.mark.anyio
async def test_other_tasks_run_between_the_pieces_of_an_image(site: Site, host: str) -> None:
    """However small a site makes them."""
    body = b"1\r\nx\r\n" * 2000 + b"0\r\n\r\n"
    site.pages["/tiny"] = Page(body, headers={"Transfer-Encoding": "chunked"})
    allowance, left = Allowance(3000), [3000]

    async def watch() -> None:
        while True:
            left.append(allowance.left)
            await asyncio.sleep(0)

    async with Fetcher(
        hosts=[host], max_bytes=3000, resolver=Names(images_test=[[SITE]])
    ) as fetcher:
        watching = asyncio.create_task(watch())
        assert await fetcher.fetch(f"https://{host}/tiny", allowance) == b"x" * 2000
        watching.cancel()
    assert max(before - after for before, after in pairwise(left)) <= 2


@pytest.mark.anyio
async def test_redirects_take_of_the_time_that_there_is(
    site: Site, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is in time, and all of them together are not."""
    monkeypatch.setattr(fetch, "SECONDS", 1.0)
    for turn in range(3):
        site.pages[f"/{turn}"] = redirect(f"/{turn + 1}", after=0.5)
    site.pages["/3"] = Page(IMAGE, after=0.5)
    with pytest.raises(UnfetchableImage, match="had not arrived after 1 s"):
        await fetched(f"https://{host}/0", [host])
    await site.hang_up()


@pytest.mark.anyio
async def test_a_site_is_told_nothing_of_the_service_or_its_callers(
    site: Site, host: str, canary: Canary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a proxy asked, whatever the environment says."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine images.test login ann password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{canary.port}")
    cookies = {"Set-Cookie": "session=secret; Secure; Path=/"}
    site.pages["/first"] = Page(IMAGE, headers=cookies)
    site.pages["/moved"] = redirect("/image")
    async with Fetcher(
        hosts=[host], max_bytes=1000, resolver=Names(images_test=[[SITE]])
    ) as fetcher:
        for path in ("/first", "/moved", "/first"):
            assert await fetcher.fetch(f"https://{host}{path}", Allowance(1000)) == IMAGE
    assert canary.connections() == 0
    assert len(site.heads) == 4
    told = {name for head in site.heads for name in head}
    assert told <= {"host", "accept", "accept-encoding", "user-agent", "connection"}
    assert "secret" not in str(site.heads)


@pytest.mark.anyio
async def test_a_fetcher_that_is_left_has_no_connections(
    site: Site, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even to a site that was given up, and does not hang up itself."""
    monkeypatch.setattr(fetch, "SECONDS", 0.3)
    site.pages["/never"] = Page(after=None)
    async with Fetcher(
        hosts=[host], max_bytes=1000, resolver=Names(images_test=[[SITE]])
    ) as fetcher:
        assert await fetcher.fetch(f"https://{host}/image", Allowance(1000)) == IMAGE
        with pytest.raises(UnfetchableImage):
            await fetcher.fetch(f"https://{host}/never", Allowance(1000))
    closed = await site.closed(seconds=2)
    await site.hang_up()
    assert closed
    with pytest.raises(Problem):
        await fetcher.fetch(f"https://{host}/image", Allowance(1000))


@pytest.fixture(scope="module")
def closed() -> Iterator[TestClient]:
    """A service as it is set up without a word about images' addresses."""
    with running_app(Settings(), [FRAGILE]) as client:
        yield client


@pytest.mark.parametrize("verb", ["explain", "predict", "activations"])
def test_no_image_is_fetched_unless_the_operator_says_so(
    closed: TestClient, canary: Canary, verb: str
) -> None:
    path = f"/v1/models/fragile:{verb}"
    named = {"image": {"url": f"https://127.0.0.1:{canary.port}/a.png"}}
    refused = closed.post(path, json={"instances": [named]})
    check(refused, 403, "forbidden", "fetches no images", pointer="/instances/0/image/url")
    mixed = closed.post(path, json={"instances": [SENT, named]})
    assert mixed.status_code == 200
    (answers,) = [value for key, value in mixed.json().items() if key != "explanations"]
    assert answers[-1]["problem"]["pointer"] == "/instances/1/image/url"
    assert answers[-1]["problem"]["status"] == 403
    assert canary.connections() == 0


@pytest.mark.parametrize(
    ("image", "status"),
    [
        ({"b64": "AAAA", "url": "https://images.test/"}, 400),
        ({}, 400),
        ({"b64": None, "url": None}, 400),
        ({"url": ""}, 400),
        ({"url": 7}, 400),
        ({"url": "https://images.test/" + "a" * 2000}, 400),
        ({"uri": "https://images.test/"}, 422),
    ],
)
def test_an_image_is_sent_or_named_and_not_both(
    closed: TestClient, image: dict[str, object], status: int
) -> None:
    kind = {400: "malformed-request", 422: "unknown-parameter"}[status]
    response = closed.post("/v1/models/fragile:explain", json={"instances": [{"image": image}]})
    pointer = response.json()["pointer"]
    assert pointer.startswith("/instances/0/image")
    check(response, status, kind, pointer=pointer)


def test_through_the_app_an_image_named_is_as_good_as_one_sent(
    site: Site, host: str, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "resolve", Names(images_test=[[SITE]]))
    site.pages["/a.png"] = Page(PHOTO)
    site.pages["/text"] = Page(b"no image")
    site.pages["/large"] = Page(bytes(20_001))
    path = "/v1/models/fragile:explain"
    settings = Settings(image_hosts=(host, f"two.test:{canary.port}"), max_body_bytes=20_000)
    with running_app(settings, [FRAGILE]) as client:

        def ask(*urls: str) -> list[dict[str, object]]:
            body = {"instances": [SENT, *({"image": {"url": url}} for url in urls)]}
            answers: list[dict[str, object]] = client.post(path, json=body).json()["predictions"]
            return answers

        sent, named = ask(f"https://{host}/a.png")
        assert {**named, "instance": 0} == sent
        for url, status in (
            (f"https://{host}/text", 422),
            (f"https://{host}/nothing", 422),
            (f"https://{host}/large", 413),
            (f"https://two.test:{canary.port}/a.png", 422),
            (f"https://127.0.0.1:{canary.port}/a.png", 403),
            ("http://169.254.169.254/latest/meta-data/", 403),
        ):
            alone = client.post(path, json={"instances": [{"image": {"url": url}}]})
            assert alone.status_code == status
            kind = alone.json()["type"].rpartition(":")[2]
            check(alone, status, kind, pointer="/instances/0/image/url")
            _, failed = ask(url)
            assert "problem" in failed
    assert canary.connections() == 0
