"""Sphinx configuration for `make docs`. The sources are all Markdown pages of the repository.

So a relative link between pages is the same in the repository and on the site.
"""

from __future__ import annotations

import re
import shutil
import sys
from hashlib import sha256
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from figures import sequence  # noqa: E402

project = "zkconsumer"
author = "The zkconsumer authors"
release = version = version_of("zkconsumer")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"),
    *("docs/*.md", "docs/**/*.md"),
]
root_doc = "docs/index"
html_theme = "furo"
html_title = "zkconsumer"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
pygments_style = "default"
pygments_dark_style = "monokai"
myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4
myst_all_links_external = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
suppress_warnings = ["misc.highlighting_failure"]
default_role = "literal"


def _files_as_text(app: Sphinx, doctree: nodes.document) -> None:
    """Replace a link to a repository file that is not a page with the file's name.

    MyST would turn such a link into a download. Most of these files are sources, which `viewcode`
    shows.
    """
    from sphinx.addnodes import download_reference

    for node in list(doctree.findall(download_reference)):
        target = str(node["reftarget"])
        if not target.endswith((".svg", ".png", ".html")):
            node.replace_self(nodes.literal("", target.lstrip("./")))


def _pictures_of_themes(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace a `<picture>` with its light and its dark image.

    The site shows the one that fits the theme that the reader chose. GitHub shows the `<picture>`.
    """
    source[0] = re.sub(
        r'<picture>\s*<source [^>]*srcset="([^"]*)">\s*'
        r'<img alt="([^"]*)" src="([^"]*)">\s*</picture>',
        r"![\2](\3){.only-light}\n![\2](\1){.only-dark}",
        source[0],
    )


def _diagrams_as_pictures(app: Sphinx, doctree: nodes.document) -> None:
    """Replace a Mermaid sequence diagram with a drawing, so that the site needs no script for it.

    GitHub shows the same source as a diagram.
    """
    for node in list(doctree.findall(nodes.literal_block)):
        if node.get("language") == "mermaid":
            drawn = sequence(node.astext())
            name = f"sequence-{sha256(drawn.encode()).hexdigest()[:12]}.svg"
            folder = Path(app.outdir, "_diagrams")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(drawn, encoding="utf-8")
            up = "../" * app.env.docname.count("/")
            title = drawn.partition("<title>")[2].partition("</title>")[0]
            picture = f'<p><img src="{up}_diagrams/{name}" alt="Sequence diagram: {title}"></p>'
            node.replace_self(nodes.raw("", picture, format="html"))


def _front_page(app: Sphinx, failure: Exception | None) -> None:
    """Put an index that links to the pages of `docs` at the top of the site."""
    if failure is None:
        page = '<!doctype html><meta charset="utf-8"><title>zkconsumer</title>'
        page += '<meta http-equiv="refresh" content="0; url=docs/index.html">'
        page += '<a href="docs/index.html">zkconsumer</a>\n'
        Path(app.outdir, "index.html").write_text(page, encoding="utf-8")
        shutil.rmtree(Path(app.outdir, "_downloads"), ignore_errors=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the functions above."""
    app.connect("source-read", _pictures_of_themes)
    app.connect("doctree-read", _files_as_text)
    app.connect("doctree-read", _diagrams_as_pictures)
    app.connect("build-finished", _front_page)
    return {"parallel_read_safe": True}
