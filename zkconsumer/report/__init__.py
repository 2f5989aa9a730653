"""HTML reports in one file without external resources. No IO.

Jinja2 and this package escape all text from a group, such as names of topics and members. Any
thread.
"""

from __future__ import annotations

from zkconsumer.report.herd_page import herd_report

__all__ = ["herd_report"]
