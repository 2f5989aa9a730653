"""``python -m zkmigrate``: the command line."""

from zkmigrate.cli import main

main()
