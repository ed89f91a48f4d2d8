"""A real browser, where there is one: screenshots of a page, and the sizes it measures."""

import html
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PROGRAM = next((path for path in map(shutil.which, NAMES) if path), None)
needed = pytest.mark.skipif(PROGRAM is None, reason=f"no browser here: none of {', '.join(NAMES)} is installed")

# Runs in a page around the report: the report itself lets no script run.
_SCRIPT = """
addEventListener("load", () => {
  const page = document.querySelector("iframe").contentDocument, found = {};
  found.scroll = page.documentElement.scrollWidth;
  found.width = page.documentElement.clientWidth;
  found.height = page.documentElement.scrollHeight;
  found.background = page.defaultView.getComputedStyle(page.body).backgroundColor;
  found.wide = [...page.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > found.width + 0.5)
    .map(e => e.outerHTML.slice(0, 80));
  // What sticks out of the box it is in, and boxes side by side that lie over each other.
  const box = e => e.getBoundingClientRect(), shown = e => box(e).width > 1 && box(e).height > 1;
  found.spilt = [...page.querySelectorAll("main table, main figure, main p, main dd, main dt, main pre")].filter(shown)
    .filter(e => box(e).right > box(e.parentElement).right + 0.5 || e.scrollWidth > e.clientWidth + 1)
    .map(e => e.outerHTML.slice(0, 80));
  found.over = [...page.querySelectorAll("main, section, .pair, .tiles, header")].flatMap(e => {
    const parts = [...e.children].filter(shown).map(box);
    return parts.flatMap((a, i) => parts.slice(i + 1).filter(b => a.left < b.right - 0.5 && b.left < a.right - 0.5 &&
      a.top < b.bottom - 0.5 && b.top < a.bottom - 0.5).map(() => e.outerHTML.slice(0, 80)));
  });
  // Texts of charts are outlines: a group each.
  found.texts = [...page.querySelectorAll("figure > svg")].map(svg => [...svg.querySelectorAll("g[id*=text_]")]
    .map(text => {
      const box = text.getBoundingClientRect(), whole = svg.getBoundingClientRect();
      return {id: text.id, left: box.left, right: box.right, top: box.top, bottom: box.bottom,
              inside: box.left >= whole.left - 1 && box.right <= whole.right + 1 && box.bottom <= whole.bottom + 1,
              scale: whole.width / svg.viewBox.baseVal.width};
    }));
  document.querySelector("pre").textContent = "FOUND" + JSON.stringify(found) + "END";
});
"""


def _run(source: Path, width: int, height: int, *options: str) -> bytes:
    """Start the browser with a profile of its own, headless, offline."""
    with tempfile.TemporaryDirectory() as profile:
        command = [
            str(PROGRAM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
            f"--window-size={width},{height}", *options, source.as_uri(),
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, check=True, timeout=180).stdout


def _around(page: str, width: int, height: int, folder: Path) -> Path:
    """Write a page that holds the report in a frame: windows cannot be made narrower than 500 pixels everywhere."""
    source = folder / f"frame-{width}.html"
    frame = f'<iframe style="border:0;width:{width}px;height:{height}px" srcdoc="{html.escape(page)}"></iframe>'
    head = '<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">'
    source.write_text(f"{head}{frame}<pre></pre><script>{_SCRIPT}</script>", encoding="utf-8")
    return source


def measured(page: str, width: int, folder: Path) -> dict:
    """Return sizes, and where every text of every chart lies, as the browser lays them out."""
    dom = _run(_around(page, width, 2000, folder), max(width, 500), 2000, "--dump-dom").decode()
    return json.loads(html.unescape(re.search(r"<pre>FOUND(.*)END</pre>", dom, re.S).group(1)))


def printed(page: str, target: Path, dark: bool = False) -> Path:
    """Print the page to PDF, as a reader would."""
    source = target.with_suffix(".html")
    source.write_text(page, encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(source, 1280, 2000, f"--print-to-pdf={target}", "--no-pdf-header-footer", *scheme)
    return target


def photographed(page: str, width: int, height: int, target: Path, dark: bool = False) -> Path:
    """Write a screenshot as PNG."""
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(_around(page, width, height, target.parent), width, height, f"--screenshot={target}", *scheme)
    return target
