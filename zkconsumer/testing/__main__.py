"""``python -m zkconsumer.testing [3.9|1.1|0.8.2 ...]``: fetch the servers' jars, all by default."""

from __future__ import annotations

import sys

from zkconsumer.errors import ClusterError
from zkconsumer.testing.jars import KAFKA_LINES, fetch_jars, java


def main() -> int:
    """Fetch what is not in the cache yet; return the exit status."""
    try:
        java()
        for kafka in sys.argv[1:] or KAFKA_LINES:
            fetch_jars(kafka)
    except ClusterError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
