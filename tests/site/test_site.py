"""The built site in ``build/docs`` (``make docs``): links, anchors, pictures, size."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "build" / "docs"
MOST_KB = 900
"""Size of one page with its pictures, without the theme."""


class Page(HTMLParser):
    """The links of a page, and the ids to which other pages can link."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.pictures: list[str] = []
        self.outside: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record ids, links, pictures, and everything else that the page loads."""
        values = {name: value or "" for name, value in attrs}
        self.ids.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "img":
            self.pictures.append(values.get("src", ""))
        loads = values.get("src") if tag in ("script", "img", "iframe") else None
        if tag == "link" and values.get("rel") == "stylesheet":
            loads = values.get("href")
        if loads and "//" in loads:
            self.outside.append(loads)


def _pages() -> Iterator[Page]:
    files = sorted(SITE.rglob("*.html"))
    assert files, "run make docs"
    return (Page(path) for path in files)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    """All pages by their path."""
    return {page.path: page for page in _pages()}


def test_no_link_and_no_anchor_is_dead(pages: dict[Path, Page]) -> None:
    """Each link within the site leads to a file, and to an id if it names one."""
    dead = []
    for page in pages.values():
        for link in page.links + page.pictures:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = page.path
            if parts.path:
                target = (page.path.parent / unquote(parts.path)).resolve()
            if not target.exists():
                dead.append(f"{page.path.relative_to(SITE)}: {link}")
            elif parts.fragment and target in pages:
                ids = pages[target].ids
                if unquote(parts.fragment) not in ids:
                    dead.append(f"{page.path.relative_to(SITE)}: {link}")
    assert not dead


def test_pages_load_nothing_from_elsewhere(pages: dict[Path, Page]) -> None:
    """The site works offline, with its own scripts, styles and pictures."""
    assert not {str(page.path): page.outside for page in pages.values() if page.outside}


def test_diagrams_are_pictures(pages: dict[Path, Page]) -> None:
    """The source of a diagram is on no page: each is drawn."""
    page = pages[SITE / "docs" / "explanation" / "coordinator.html"]
    assert sum("_diagrams/" in one for one in page.pictures) == 1
    assert "sequenceDiagram" not in page.path.read_text(encoding="utf-8")


def test_a_picture_with_a_dark_twin_is_in_both_themes() -> None:
    """The site shows the picture of the theme that the reader chose."""
    text = (SITE / "docs" / "how-to" / "audit-a-group.html").read_text(encoding="utf-8")
    assert "<picture>" not in text
    for theme, name in (("light", "audit-report.png"), ("dark", "audit-report-dark.png")):
        (image,) = re.findall(rf'<img [^>]*src="[^"]*/{name}"[^>]*>', text)
        assert f"only-{theme}" in image
        assert 'alt="A report: the verdict in words' in image


def test_pages_are_light(pages: dict[Path, Page]) -> None:
    """A page and its pictures stay below the limit. Pages with module sources do not count."""
    heavy = {}
    for page in pages.values():
        if "_modules" in page.path.parts:
            continue
        files = [page.path, *((page.path.parent / unquote(one)) for one in page.pictures)]
        size = sum(file.stat().st_size for file in files if file.exists())
        if size > MOST_KB * 1024:
            heavy[str(page.path.relative_to(SITE))] = size
    assert not heavy


WIDTH, PHONE = 1300, 390
"""Pixels of the window in which the pages are loaded, and of a phone's."""


class Loaded(NamedTuple):
    """How a page loads in headless Chromium.

    Attributes:
        seconds: until it is there, the better of two times.
        cut: first lines of the code blocks that are wider than the column.
        phone: pixels that the page needs on a phone.
    """

    seconds: float
    cut: list[str]
    phone: int


def _loaded(pages: list[str], folder: Path) -> dict[str, Loaded]:
    """Load pages in headless Chromium."""
    script = (
        "<body></body><script>const load = url => new Promise(done => {"
        "const frame = document.createElement('iframe'), begun = performance.now();"
        f"frame.style = 'width: {WIDTH}px; height: 800px'; frame.src = url;"
        "frame.onload = () => { const took = performance.now() - begun;"
        "const cut = [...frame.contentDocument.querySelectorAll('pre')]"
        ".filter(block => block.scrollWidth > block.clientWidth)"
        ".map(block => block.textContent.split('\\n')[0]);"
        f"frame.style.width = '{PHONE}px';"
        "const phone = frame.contentDocument.documentElement.scrollWidth;"
        "frame.remove(); done([took / 1000, cut, phone]) }; document.body.append(frame) });"
        f"(async () => {{ const found = {{}}; for (const page of {json.dumps(pages)}) {{"
        "const [first, cut, phone] = await load('/' + page), [second] = await load('/' + page);"
        "found[page] = [Math.min(first, second), cut, phone] }"
        "fetch('/done', {method: 'POST', body: JSON.stringify(found)}) })()</script>"
    ).encode()
    answers: Queue[dict[str, tuple[float, list[str], int]]] = Queue()

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            """Serve the site, and the script that loads it."""
            if self.path != "/load":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(script)

        def do_POST(self) -> None:
            """Take the results."""
            answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
        command += ["--remote-debugging-port=0", f"--user-data-dir={folder}"]
        browser = subprocess.Popen(
            [*command, f"http://127.0.0.1:{server.server_port}/load"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            found = answers.get(timeout=300)
            return {page: Loaded(*values) for page, values in found.items()}
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loaded]:
    """All pages in headless Chromium, without those with module sources."""
    if shutil.which("chromium") is None:
        pytest.skip("chromium is not installed")
    pages = [page.path.relative_to(SITE) for page in _pages()]
    names = [str(one) for one in pages if "_modules" not in one.parts]
    return _loaded(names, tmp_path_factory.mktemp("chromium"))


def test_each_page_loads_within_a_second(loaded: dict[str, Loaded]) -> None:
    """From this machine."""
    assert len(loaded) > 50
    assert not {page: one.seconds for page, one in loaded.items() if one.seconds > 1}


def test_no_code_block_is_wider_than_the_column(loaded: dict[str, Loaded]) -> None:
    """In a window of usual width, a reader sees all of each line."""
    assert not {page: one.cut for page, one in loaded.items() if one.cut}


def test_a_phone_scrolls_no_page_sideways(loaded: dict[str, Loaded]) -> None:
    """Wide tables and code blocks scroll by themselves; pictures and texts fit."""
    assert not {page: one.phone for page, one in loaded.items() if one.phone > PHONE}


def test_the_index_is_sorted_by_jobs_and_fits_a_screen(pages: dict[Path, Page]) -> None:
    """Each job has links, in few lines."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [part.split()[0] for part in parts] == [
        "Run",
        "Reproduce",
        "Migrate",
        "Audit",
        "Operate",
    ]
    for part in parts:
        lines = re.sub(r"```.*?```", "", part, flags=re.DOTALL).strip().splitlines()
        assert len(lines) <= 14
        assert len(re.findall(r"\]\(", part)) >= 3
    assert "how-to/look-after-groups.html" in "".join(pages[SITE / "docs" / "index.html"].links)


def test_the_api_links_to_sources_and_search_works(pages: dict[Path, Page]) -> None:
    """Each class of the API links to its source, and the search page has its index."""
    api = pages[SITE / "docs" / "reference" / "api.html"]
    assert sum("_modules/zkconsumer" in link for link in api.links) > 40
    assert (SITE / "searchindex.js").stat().st_size > 50_000
    assert SITE / "search.html" in pages
