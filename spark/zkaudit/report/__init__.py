"""The report: ``page`` writes one HTML file from the tables, with ``page.html`` and ``page.js``."""
