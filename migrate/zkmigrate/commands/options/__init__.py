"""Options that several commands share. Each hands the command one value.

``selection``: which groups (``Selection``). ``renaming``: their other names. ``decisions``: what a
plan cannot decide by itself (``Options``). ``servers``: where the servers are (``Servers``), and
the sessions with them. ``running``: plan, journal and hooks of a command that changes groups.
``files`` reads and writes what options name.
"""
