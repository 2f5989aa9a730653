"""Reports for people: one HTML file without external resources. No IO.

Jinja2 and this package escape all text from a group (names of topics, members). Any thread.
"""

from __future__ import annotations

from zkconsumer.report.herd_page import herd_report

__all__ = ["herd_report"]
