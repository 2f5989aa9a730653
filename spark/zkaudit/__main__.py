"""``python -m zkaudit``: the command line."""

from zkaudit.cli import main

main()
