"""The built site in ``build/docs`` (``make docs``): links, anchors, pictures, size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
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
    assert sum("_diagrams/" in one for one in page.pictures) == 2
    assert "sequenceDiagram" not in page.path.read_text(encoding="utf-8")


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


def test_the_index_answers_four_questions_and_fits_a_screen(pages: dict[Path, Page]) -> None:
    """Run, reproduce, migrate and audit each have links, in few lines."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    assert [part.split()[0] for part in parts] == ["Run", "Reproduce", "Migrate", "Audit"]
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
