"""The check of the built site, tests/docs_site.py, finds what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs_site import problems

GOOD = """<html><head>
<link rel="stylesheet" href="style.css"><link rel="canonical" href="https://here/"></head>
<body><h1 id="top">Top</h1><a href="#top">up</a><a href="more/page.html#part">more</a>
<a href="https://elsewhere.example/">elsewhere</a><img src="picture.png">
<img src="data:image/png;base64,AA">
</body></html>"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    (tmp_path / "more").mkdir()
    (tmp_path / "index.html").write_text(GOOD)
    (tmp_path / "more" / "page.html").write_text(
        '<p id="part"><a href="../index.html">back</a></p>'
    )
    (tmp_path / "style.css").write_text("body { background: url(picture.png) }")
    (tmp_path / "picture.png").write_bytes(b"")
    places = [{"location": "index.html"}, {"location": "more/page.html#part"}]
    (tmp_path / "search.json").write_text(json.dumps({"items": places}))
    return tmp_path


def test_a_good_site(site: Path) -> None:
    assert list(problems(site)) == []


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ('<a href="nowhere.html">', "the link nowhere.html leads nowhere"),
        ('<a href="../outside.html">', "the link ../outside.html leads nowhere"),
        ('<a href="#nowhere">', "the link #nowhere has an anchor that is not there"),
        (
            '<a href="more/page.html#no">',
            "the link more/page.html#no has an anchor that is not there",
        ),
        ('<img src="missing.png">', "missing.png is not there"),
        ('<script src="https://cdn.example/x.js">', "is loaded from another host"),
        ('<script src="//cdn.example/x.js">', "is loaded from another host"),
        (
            '<img srcset="picture.png 1x, https://cdn.example/x.png 2x">',
            "is loaded from another host",
        ),
        ('<link rel="preconnect" href="https://fonts.example">', "is loaded from another host"),
        ('<style>@import "https://fonts.example/x.css";</style>', "is loaded from another host"),
        ('<p style="background: url(https://cdn.example/x.png)">', "is loaded from another host"),
        ('<pre class="mermaid">', "the class mermaid loads a script of a CDN"),
    ],
)
def test_what_is_wrong_in_a_page(site: Path, added: str, said: str) -> None:
    (site / "index.html").write_text(GOOD.replace("</body>", f"{added}</body>"))
    (found,) = problems(site)
    assert found.startswith("index.html: ")
    assert said in found


def test_what_is_wrong_beside_the_pages(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (site / "style.css").write_text("@font-face { src: url('https://fonts.example/x.woff2') }")
    (site / "search.json").write_text('{"items": [{"location": "index.html"}]}')
    assert list(problems(site)) == [
        "style.css: https://fonts.example/x.woff2 is loaded from another host",
        "more/page.html is not in the search index",
    ]
    (found, _) = problems(tmp_path_factory.mktemp("empty"))
    assert found.endswith("there is no page")
