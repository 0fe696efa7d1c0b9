"""A browser that opens a report from its file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
ARGUMENTS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def launched() -> Iterator[Browser]:
    # A sandbox within a container's root is refused.
    unboxed = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(
            executable_path=CHROMIUM, args=[*ARGUMENTS, *unboxed]
        ) as browser,
    ):
        yield browser


@contextmanager
def opened(browser: Browser, file: Path, *, script: bool = True) -> Iterator[Page]:
    """The page, which at the end has complained of nothing and asked for nothing.

    Args:
        script: whether JavaScript is on.
    """
    complaints: list[str] = []
    asked: list[str] = []
    with browser.new_page(
        viewport={"width": 1200, "height": 800}, java_script_enabled=script
    ) as page:
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        yield page
        assert complaints == []
        assert {url for url in asked if not url.startswith("data:")} == {file.as_uri()}


def found(page: Page) -> str:
    return page.locator("#found").inner_text()
