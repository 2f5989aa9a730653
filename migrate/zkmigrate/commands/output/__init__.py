"""Output of commands: rows on standard output, everything else on standard error.

``rows``: tables, CSV, and JSON with its schemas. ``cells``: problems and offsets as cells of rows.
``outcomes``: the outcome of each group. ``progress``, ``metrics``: the progress of a run.
``watch`` repeats a command.
"""
