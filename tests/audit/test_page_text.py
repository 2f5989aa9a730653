"""The report page's text, without Spark."""

from __future__ import annotations

import pytest
from zkaudit.report.page import render


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--", "&lt;", "]]>"])
def test_no_text_ends_the_script_that_holds_it(text: str) -> None:
    """A group may be called anything."""
    page, plain = render({"groups": [text]}), render({"groups": ["g"]})
    for mark in ("<", ">", "&"):
        assert page.count(mark) == plain.count(mark)
