"""What is wrong with the built documentation site: dead links and anchors, missing pictures, and
whatever a browser would load from another host.

    python -m tests.docs_site build/site

It looks at the HTML and CSS, so it holds for whatever generator made them. It needs the standard
library alone.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

LOADED: Final = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "track": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "input": ("src",),
    "image": ("href", "xlink:href"),
    "use": ("href", "xlink:href"),
}
"""Element → attributes whose address a browser loads by itself."""
RELATIONS: Final = {
    "stylesheet",
    "icon",
    "shortcut",
    "apple-touch-icon",
    "preload",
    "prefetch",
    "modulepreload",
    "preconnect",
    "dns-prefetch",
    "manifest",
}
"""Of a `<link>`, those that make a browser load its address or prepare to."""
SUMMONING: Final = {"mermaid", "glightbox", "pyodide"}
"""Classes for which the theme's script fetches another one from a CDN."""
STYLE: Final = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """What a page loads, links to, and can be linked at."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.assets: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.summons: set[str] = set()
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self.summons |= SUMMONING & set(given.get("class", "").split())
        self._in_style = tag == "style"
        self.assets += addresses_in_style(given.get("style", ""))
        for name in LOADED.get(tag, ()):
            for each in given.get(name, "").split(",") if name == "srcset" else [given.get(name)]:
                self.assets += (each or "").split()[:1]
        if tag == "link" and RELATIONS & set(given.get("rel", "").lower().split()):
            self.assets.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.assets += addresses_in_style(data)


def addresses_in_style(text: str) -> list[str]:
    return [one or other for one, other in STYLE.findall(text)]


def external(address: str) -> bool:
    return address.startswith("//") or urlsplit(address).scheme in ("http", "https")


def problems(site: Path) -> Iterator[str]:
    """A sentence for each thing that is wrong."""
    pages = {file: Page(file.read_text()) for file in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: there is no page"
    for file, page in pages.items():
        where = file.relative_to(site)
        yield from (f"{where}: the class {name} loads a script of a CDN" for name in page.summons)
        for address in page.assets:
            yield from wrong_asset(site, file, address)
        for address in page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue  # what another host has is not looked at
            target = resolved(site, file, parts.path)
            if target is None or not target.exists():
                yield f"{where}: the link {address} leads nowhere"
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].anchors}:
                yield f"{where}: the link {address} has an anchor that is not there"
    for file in sorted(site.rglob("*.css")):
        for address in addresses_in_style(file.read_text()):
            yield from wrong_asset(site, file, address)
    yield from unsearchable(site, pages)


def wrong_asset(site: Path, file: Path, address: str) -> Iterator[str]:
    where = file.relative_to(site)
    if external(address):
        yield f"{where}: {address} is loaded from another host"
    elif address and not urlsplit(address).scheme:  # data: is in the page itself
        path = urlsplit(address).path
        target = resolved(site, file, path)
        if path and (target is None or not target.is_file()):
            yield f"{where}: {address} is not there"


def resolved(site: Path, file: Path, path: str) -> Path | None:
    """The file of a path in a page; None if it leads out of the site."""
    if not path:
        return file
    base = site if path.startswith("/") else file.parent
    target = (base / unquote(path).lstrip("/")).resolve()
    if not target.is_relative_to(site.resolve()):
        return None
    return site / target.relative_to(site.resolve()) / ("index.html" if target.is_dir() else "")


def unsearchable(site: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Pages that the search index does not have."""
    index = site / "search.json"
    if not index.is_file():
        yield "search.json is not there, so nothing is found by the search"
        return
    places = {each["location"].partition("#")[0] for each in json.loads(index.read_text())["items"]}
    for file in pages:
        name = file.relative_to(site).as_posix()
        if name not in {"404.html", *places} and name.removesuffix("index.html") not in places:
            yield f"{name} is not in the search index"


def main() -> None:
    site = Path(sys.argv[1])
    found = list(problems(site))
    for each in found:
        print(each, file=sys.stderr)
    print(f"{len(list(site.rglob('*.html')))} pages, {len(found)} problems")
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
