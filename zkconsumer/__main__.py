"""``python -m zkconsumer``: the command line."""

from zkconsumer.cli import main

main()
