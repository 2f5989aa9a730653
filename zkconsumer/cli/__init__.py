"""The command line. Its libraries are in the extra ``cli``; this module works without them."""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRA = frozenset({"click", "jinja2", "rich"})


def main() -> None:
    """Run ``zkconsumer`` with the arguments of this process and exit with its status."""
    try:
        from zkconsumer.cli.main import run

        status = run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _EXTRA:
            raise
        print(
            f"error: the command line needs {error.name}: in a clone run pip install '.[cli]'",
            file=sys.stderr,
        )
        status = 1
    sys.exit(status)
