"""Options that several commands share. Each passes one value to the command.

``selection``: which groups (``Selection``). ``renaming``: their other names. ``decisions``:
decisions that a plan cannot make by itself (``Options``). ``servers``: addresses of the servers
(``Servers``), and sessions with them. ``running``: plan, journal and hooks of a command that
changes groups. ``files`` reads and writes the files that options name.
"""
