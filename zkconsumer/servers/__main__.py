"""``python -m zkconsumer.servers [LINE ...]``: fetch the jars of these lines of Kafka, or all."""

from __future__ import annotations

import sys

from zkconsumer.errors import ClusterError
from zkconsumer.servers.jars import KAFKA_LINES, fetch_jars, java


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
