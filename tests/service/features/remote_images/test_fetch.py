"""Images by their address: from the hosts allowed, and never from what is somebody's own."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack

import pytest

from service.core.errors import Forbidden, Problem, UnfetchableImage
from service.features.remote_images import fetch
from service.features.remote_images.fetch import Fetcher, is_public
from service.http.reception import Allowance
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

pytestmark = [pytest.mark.anyio, pytest.mark.contract]


def hosts_of(*urls: str) -> list[str]:
    """What an operator without care would allow, so that each of these is let through."""
    found = [re.match(r"\w*:?//([^/?#]*)", url) for url in urls]
    named = [each[1].rpartition("@")[2] for each in found if each]
    return [*named, *(each.replace("[", "").replace("]", "") for each in named)]


FORBIDDEN = [
    "https://127.0.0.1:{port}/",
    "https://127.1:{port}/",
    "https://127.0.1:{port}/",
    "https://2130706433:{port}/",
    "https://0177.0.0.1:{port}/",
    "https://017700000001:{port}/",
    "https://0x7f.0.0.1:{port}/",
    "https://0x7f000001:{port}/",
    "https://0x7F.1:{port}/",
    "https://127.0.0.01:{port}/",
    "https://0:{port}/",
    "https://0.0.0.0:{port}/",
    "https://127.0.0.1.:{port}/",
    "https://127.000.000.001:{port}/",
    "https://[::1]:{port}/",
    "https://[0:0:0:0:0:0:0:1]:{port}/",
    "https://[::ffff:127.0.0.1]:{port}/",
    "https://[::ffff:7f00:1]:{port}/",
    "https://[::127.0.0.1]:{port}/",
    "https://[::1%25lo]:{port}/",
    "https://[64:ff9b::127.0.0.1]:{port}/",
    "https://[::]:{port}/",
    "https://[fe80::1%25lo]:{port}/",
    "https://localhost:{port}/",
    "https://LOCALHOST:{port}/",
    "https://localhost.:{port}/",
    "https://images.test.:{port}/",
    "https://images.test..:{port}/",
    "https://evil.test:{port}/",
    "https://x.images.test:{port}/",
    "https://images.test.evil.test:{port}/",
    "https://imagesxtest:{port}/",
    "https://images.test@127.0.0.1:{port}/",
    "https://images.test:x@127.0.0.1:{port}/",
    "https://127.0.0.1@images.test:{port}/",
    "https://u:p@images.test:{port}/",
    "https://@images.test:{port}/",
    "https://images.test%2f@127.0.0.1:{port}/",
    "https://images.test%00.evil.test:{port}/",
    "https://images.test:{port}\\@127.0.0.1:{port}/",
    "https://127.0.0.1:{port}\\@images.test:{port}/",
    "https:\\\\127.0.0.1:{port}\\",
    "https:/127.0.0.1:{port}/",
    "https:///127.0.0.1:{port}/",
    "https://images.test:{port}#@127.0.0.1:{port}/",
    "https://images.test:{port}?@127.0.0.1:{port}/",
    "http://images.test:{port}/",
    "http://127.0.0.1:{port}/",
    "HTTP://images.test:{port}/",
    "ftp://images.test/",
    "ws://images.test:{port}/",
    "wss://images.test:{port}/",
    "unix:///tmp/socket",
    "file:///etc/passwd",
    "//images.test:{port}/",
    "images.test:{port}",
    "/etc/passwd",
    "data:image/png;base64,AAAA",
    "gopher://x:{port}/",
    "https+unix://images.test:{port}/",
    "javascript:1",
    "https:",
    "https://",
    "://",
    "?",
    "#",
    "https://?",
    "https://:{port}/",
    "https://images.test:0/",
    "https://images.test:22/",
    "https://images.test/",
    "https://images.test:443/",
    "https://images.test:65536/",
    "https://images.test:-1/",
    "https://images.test:{port}x/",
    "https://images.test:1e3/",
    "https://images.test:８０/",
    "https://１２７.0.0.1:{port}/",
    "https://①②⑦.⓪.⓪.①:{port}/",
    "https://127。0。0。1:{port}/",
    "https://127．0．0．1:{port}/",
    "https://images。evil。test:{port}/",
    "https://ⓛocalhost:{port}/",
    "https://xn--a:{port}/",
    "https://[images.test]:{port}/",
    "https://[::1:{port}/",
    "https://IMAGES.TEST:{port}/",
    "https://images.test:{port}/",
    "https://images．test:{port}/",
    "https://images.test:0{port}/",
    "https://169.254.169.254:{port}/",
    "https://[fd00:ec2::254]:{port}/",
]


@pytest.mark.parametrize("form", FORBIDDEN)
async def test_nothing_that_is_somebodys_own_is_reached(canary: Canary, form: str) -> None:
    """All names are at the canaries, whether the operator allows one host or whatever is asked."""
    url = form.format(port=canary.port)
    for hosts in ([f"images.test:{canary.port}"], hosts_of(url, "https://images.test:443/")):
        with pytest.raises(Problem) as told:
            await fetched(url, hosts, Names())
        assert told.type in (Forbidden, UnfetchableImage)
        assert told.value.detail
        assert canary.connections() == 0


async def test_spaces_and_control_characters_lead_nowhere_else(canary: Canary) -> None:
    for character in " \t\n\r\0\x0b\x7f\xad\u200b\u2028\ud800":
        for form in (
            "{0}https://images.test:{1}/",
            "https://{0}127.0.0.1:{1}/",
            "https://images.test{0}:{1}/",
        ):
            url = form.format(character, canary.port)
            with pytest.raises(Problem):
                await fetched(url, [f"images.test:{canary.port}"], Names())
            assert canary.connections() == 0, repr(url)


async def test_a_canary_sees_those_who_come(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "is_public", lambda text: True)
    monkeypatch.setattr(fetch, "SECONDS", 0.3)
    with pytest.raises(UnfetchableImage):
        await fetched(
            f"https://images.test:{canary.port}/", [f"images.test:{canary.port}"], Names()
        )
    assert canary.connections() >= 1


@pytest.mark.parametrize(
    "addresses", [["8.8.8.8", "127.0.0.1"], ["::1", "2606:4700::1111"], ["10.0.0.1"], []]
)
async def test_a_name_with_one_address_of_somebodys_own_is_not_reached_at_all(
    canary: Canary, addresses: list[str]
) -> None:
    names = Names(images_test=[addresses])
    host = f"images.test:{canary.port}"
    with pytest.raises(UnfetchableImage, match="not public"):
        await fetched(f"https://{host}/", [host], names)
    assert canary.connections() == 0


async def test_a_name_that_changes_its_mind_is_not_followed(
    canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First a public address, at which nobody is, and from then on the canaries' own."""
    monkeypatch.setattr(fetch, "is_public", lambda text: text == "127.0.0.9" or is_public(text))
    names = Names(images_test=[["127.0.0.9"], ["127.0.0.1", "::1"]])
    host = f"images.test:{canary.port}"
    async with Fetcher(hosts=[host], max_bytes=1000, resolver=names) as fetcher:
        for turn in range(3):
            with pytest.raises(UnfetchableImage, match="cannot be fetched" if not turn else None):
                await fetcher.fetch(f"https://{host}/", Allowance(1000))
            assert turn or len(names.asked) == 1
    with pytest.raises(UnfetchableImage, match="not public"):
        await fetched(f"https://{host}/", [host], names)
    assert len(names.asked) >= 2
    assert canary.connections() == 0


@pytest.mark.parametrize("there", ["nobody", "somebody who does not answer"])
async def test_the_next_address_is_tried(
    site: Site, there: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "is_public", lambda text: text in ("127.0.0.9", SITE))
    host = f"images.test:{site.server_port}"
    with ExitStack() as scope:
        if there != "nobody":
            busy = socket.create_server(("127.0.0.9", site.server_port), backlog=0)
            scope.enter_context(busy)
            for _ in range(4):  # the queue is full, and who comes now gets no answer
                waiting = scope.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex(busy.getsockname())
        names = Names(images_test=[["127.0.0.9", SITE]])
        assert await fetched(f"https://{host}/image", [host], names) == IMAGE


async def test_the_bytes_of_an_image_come_through(site: Site) -> None:
    for host in ("images.test", "IMAGES.test"):
        url = f"https://{host}:{site.server_port}/image"
        assert await fetched(url, [f"Images.Test:{site.server_port}"]) == IMAGE
    assert len(site.heads) == 2


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_among_the_hosts_allowed_are_followed(site: Site, status: int) -> None:
    port = site.server_port
    site.pages["/one"] = redirect("two", status)
    site.pages["/two"] = redirect(f"//two.test:{port}/three", status)
    site.pages["/three"] = redirect(f"https://images.test:{port}/image", status)
    names = Names(images_test=[[SITE]], two_test=[[SITE]])
    hosts = [f"images.test:{port}", f"two.test:{port}"]
    assert await fetched(f"https://images.test:{port}/one", hosts, names) == IMAGE
    site.pages["/zero"] = redirect("/one", status)
    with pytest.raises(UnfetchableImage, match="more than 3 redirects"):
        await fetched(f"https://images.test:{port}/zero", hosts, names)
    assert not any("cookie" in head for head in site.heads)


@pytest.mark.parametrize(
    "form", [*FORBIDDEN, "https://two.test:{port}/", "//127.0.0.1:{port}/", "//two.test:{port}", ""]
)
async def test_a_redirect_leads_nowhere_that_an_address_may_not(
    site: Site, canary: Canary, form: str
) -> None:
    where = form.format(port=canary.port)
    site.pages["/"] = redirect(where)
    own = f"images.test:{site.server_port}"
    for hosts in ([f"two.test:{canary.port}"], hosts_of(where)):
        with pytest.raises(Problem) as told:
            await fetched(f"https://{own}/", [own, *hosts])
        assert told.type in (Forbidden, UnfetchableImage)
        assert site.heads
        assert canary.connections() == 0


@pytest.mark.parametrize("host", ["two.test", "images.test.", "x.images.test", "test", "images"])
async def test_only_the_hosts_allowed_are_asked(site: Site, host: str) -> None:
    """All of them are at a public address, and have a port that is open."""
    own = f"images.test:{site.server_port}"
    other = f"https://{host}:{site.server_port}/image"
    site.pages["/"] = redirect(other)
    for url in (other, f"https://{own}/", f"https://images.test:{site.server_port + 1}/image"):
        names = Names(**{host.replace(".", "_"): [[SITE]]}, images_test=[[SITE]])
        with pytest.raises(Forbidden, match=f"only from {own}$"):
            await fetched(url, [own], names)
        assert set(names.asked) <= {"images.test"}
    assert len(site.heads) == 1
    for hosts in ([], ["two.test"], ["images.test"], [f"https://{own}"], ["*", "*.test"]):
        with pytest.raises(Forbidden):
            await fetched(f"https://{own}/image", hosts)
    assert len(site.heads) == 1


@pytest.mark.parametrize("form", ["http://{0}/image", "https://u:p@{0}/image", "wss://{0}/image"])
async def test_a_redirect_leads_nowhere_but_by_https_and_without_a_password(
    site: Site, form: str
) -> None:
    host = f"images.test:{site.server_port}"
    site.pages["/"] = redirect(form.format(host))
    with pytest.raises(Forbidden, match="an image's address"):
        await fetched(f"https://{host}/", [host])
    assert len(site.heads) == 1


async def test_what_is_no_image_is_told_without_its_secrets(site: Site) -> None:
    host = f"images.test:{site.server_port}"
    for status in (204, 206, 304, 400, 401, 404, 500):
        site.pages["/x?token=secret"] = Page(b"", status)
        with pytest.raises(UnfetchableImage, match=f"/x answers {status}$") as told:
            await fetched(f"https://{host}/x?token=secret#secret", [host])
        assert "secret" not in told.value.detail
    site.pages["/loop?token=secret"] = redirect("/loop?token=secret")
    with pytest.raises(UnfetchableImage) as told:
        await fetched(f"https://{host}/loop?token=secret", [host])
    assert "secret" not in told.value.detail


async def test_a_certificate_must_be_trusted_and_of_that_name(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = f"other.test:{site.server_port}"
    with pytest.raises(UnfetchableImage, match="Certificate"):
        await fetched(f"https://{other}/image", [other], Names(other_test=[[SITE]]))
    monkeypatch.delenv("SSL_CERT_FILE")
    host = f"images.test:{site.server_port}"
    with pytest.raises(UnfetchableImage, match="Certificate"):
        await fetched(f"https://{host}/image", [host])
    assert site.heads == []
