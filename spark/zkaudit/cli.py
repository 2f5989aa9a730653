"""The command ``zkaudit``. Its libraries come with extras; this module works without them."""

from __future__ import annotations

import sys

_EXTRAS = {"click": "cli", "rich": "cli", "pyspark": "audit", "pyarrow": "audit", "numpy": "audit"}


def main() -> None:
    """Run ``zkaudit`` with the arguments of this process and exit with its status."""
    try:
        from zkaudit.cli_commands import run

        status = run(sys.argv[1:])
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in _EXTRAS:
            raise
        sys.stderr.write(
            f"error: zkaudit needs {name}: in a clone run pip install '.[cli,audit]'\n"
        )
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
