"""Pages as a browser lays them out: headless Chromium, 1280 pixels wide."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

WIDTH = 1280

# Every page in a frame of its own, one after the other; what is wider than its room is listed.
_MEASURE = """<!doctype html><body style="margin:0"><script>
const pages = %s, found = {};
function cut(page) {
  const wide = [];
  if (page.documentElement.scrollWidth > %d + 1) wide.push("the page itself");
  for (const part of page.querySelectorAll("pre > code, pre, table, img, svg")) {
    const room = part.closest(".md-typeset__scrollwrap, .tabbed-block, article, main, body");
    if (part.offsetParent === null && part.tagName !== "svg") continue;
    // Output of the command line scrolls where it is wider: a wrapped row cannot be read.
    const scrolls = part.matches(".language-text pre > code")
        && getComputedStyle(part).overflowX === "auto";
    if (part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0 && !scrolls
        || part.getBoundingClientRect().right > %d + 1
        || (room && part.getBoundingClientRect().right > room.getBoundingClientRect().right + 1))
      wide.push(part.tagName.toLowerCase() + ": " + part.textContent.trim().slice(0, 60));
  }
  return wide;
}
async function look(url) {
  const frame = document.createElement("iframe");
  frame.style = "width:%dpx;height:3000px;border:0";
  frame.sandbox = "allow-same-origin";  // no scripts: the theme's may lay a page out forever
  frame.src = url;
  document.body.append(frame);
  await new Promise(done => { frame.onload = done; });
  found[url] = cut(frame.contentDocument);
  frame.remove();
}
(async () => {
  for (const url of pages) await look(url);
  document.title = "measured";
  document.body.innerText = JSON.stringify(found);
})();
</script>"""


def browser() -> str:
    """The browser's program; the test is skipped where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("Chromium is not installed: make components")


def cut_off(pages: Sequence[Path], folder: Path) -> dict[str, list[str]]:
    """What each page shows that does not fit into 1280 pixels, for pages that show such things."""
    program = browser()
    urls = json.dumps([page.resolve().as_uri() for page in pages])
    measuring = folder / "measure.html"
    measuring.write_text(_MEASURE % (urls, WIDTH, WIDTH, WIDTH), encoding="utf-8")
    run = subprocess.run(
        [
            *(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--allow-file-access-from-files", "--disable-web-security"),
            *(f"--user-data-dir={folder / 'profile'}", f"--window-size={WIDTH},3000"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=120000"),
            *("--dump-dom", measuring.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    body = re.search(r"<body[^>]*>(.*)</body>", run.stdout, re.DOTALL)
    assert body is not None
    assert "<title>measured</title>" in run.stdout, run.stdout[-2000:]
    laid_out: dict[str, list[str]] = json.loads(html.unescape(body[1]))
    assert len(laid_out) == len(pages)
    names = {page.resolve().as_uri(): page for page in pages}
    return {str(names[url]): wide for url, wide in laid_out.items() if wide}
