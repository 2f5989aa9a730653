"""Reports for people: one HTML file that needs nothing else. No IO.

Text that comes from a group (names of topics, members) is escaped everywhere, by Jinja2 and here.
Any thread.
"""

from __future__ import annotations

from zkconsumer.report.herd import herd_report

__all__ = ["herd_report"]
