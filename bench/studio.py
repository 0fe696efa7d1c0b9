"""How quick the page is, in a headless Chromium on this machine.

    python -m bench.studio [--turns 30] [--photo docs/photos/chelsea.png]

Medians over the turns: the first paint of a fresh tab; a change of the look, until the picture is
drawn; a method that was seen before; a method that was not, beside the time that the service says
it took (`Server-Timing`). The service runs in a process of its own on the same cores.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import httpx2
from playwright.sync_api import Browser, Page
from rich.console import Console
from rich.table import Table

from service.features.studio.routes import PATHS
from tests.service.features.report.report_browser import launched
from tests.service.live import serving

WATCH = """
window.drawnAt = 0;
const plain = CanvasRenderingContext2D.prototype.drawImage;
CanvasRenderingContext2D.prototype.drawImage = function (...given) {
  const made = plain.apply(this, given);
  if (this.canvas.id === "picture") window.drawnAt = performance.now();
  return made;
};
"""
CHANGE = """
([selector, value, event]) => new Promise((resolve) => {
  const input = document.querySelector(selector), start = performance.now();
  window.drawnAt = 0;
  performance.clearResourceTimings();
  input.value = value;
  input.dispatchEvent(new Event(event, { bubbles: true }));
  const done = () => {
    const asked = performance.getEntriesByType("resource").find((one) => one.name.includes(":ex"));
    const service = asked?.serverTiming.reduce((sum, { duration }) => sum + duration, 0);
    resolve([window.drawnAt - start, service ?? 0]);
  };
  const look = () => {
    const busy = document.querySelector(".right").getAttribute("aria-busy") === "true";
    if (busy || !window.drawnAt) setTimeout(look, 1);
    else setTimeout(done, 100);  // the picture is drawn after the page around it
  };
  look();
})
"""
METHODS = ("gradcam", "hirescam", "layercam", "elementwise", "xgradcam", "gradcam++")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--photo", default="docs/photos/chelsea.png")
    arguments = parser.parse_args()
    with serving() as (_, http), launched() as browser:
        address = str(http.base_url)
        rows = measure(browser, address, Path(arguments.photo), arguments.turns)
        weight = sum(
            len(
                httpx2.get(address.rstrip("/") + path, headers={"Accept": "text/html, */*"}).content
            )
            for path in PATHS
        )
    table = Table("", "median", "90 %", "asked")
    for name, (values, asked) in rows.items():
        ninety = sorted(values)[int(0.9 * len(values))]
        table.add_row(name, f"{statistics.median(values):.0f} ms", f"{ninety:.0f} ms", asked)
    table.add_row("all files of the page", f"{weight / 1000:.0f} kB", "", "250 kB")
    Console().print(table)


def measure(
    browser: Browser, address: str, photo: Path, turns: int
) -> dict[str, tuple[list[float], str]]:
    """Return what was measured, in milliseconds, with what is asked of it."""
    paints = [first_paint(browser, address) for _ in range(turns)]
    page = opened(browser, address)
    page.locator("input[multiple]").first.set_input_files(photo)
    page.locator("#classes button").first.wait_for()
    looks = [changed(page, "#opacity", str(0.3 + n % 2 / 10), "input")[0] for n in range(turns)]
    known, beside = [], []
    for n in range(turns):
        # Another class each time, which no answer in the page's memory is about.
        page.goto(page.url.partition("&target=")[0] + f"&target={n}")
        page.reload()
        page.locator("#classes button").first.wait_for()
        method = METHODS[1 + n % (len(METHODS) - 1)]
        wall, service = changed(page, "#method", method, "change")
        beside.append(wall - service)
        changed(page, "#method", "gradcam", "change")
        known.append(changed(page, "#method", method, "change")[0])
    return {
        "first paint": (paints, "1000 ms"),
        "another look": (looks, "16 ms"),
        "a map from the page's memory": (known, "100 ms"),
        "a new map, beside the service's time": (beside, "30 ms"),
    }


def opened(browser: Browser, address: str) -> Page:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(60_000)
    page.add_init_script(WATCH)
    page.goto(address)
    return page


def first_paint(browser: Browser, address: str) -> float:
    page = opened(browser, address)
    page.locator(".invitation").wait_for()
    entries = "performance.getEntriesByName('first-contentful-paint')"
    page.wait_for_function(f"() => {entries}.length")
    script = f"() => {entries}[0].startTime"
    painted = float(page.evaluate(script))
    page.close()
    return painted


def changed(page: Page, selector: str, value: str, event: str) -> tuple[float, float]:
    """Change an input, and return the milliseconds until the picture is drawn and those of the
    service."""
    wall, service = page.evaluate(CHANGE, [selector, value, event])
    return float(wall), float(service)


if __name__ == "__main__":
    main()
