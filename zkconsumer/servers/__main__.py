"""``python -m zkconsumer.servers [LINE ...]``: fetch the jars of these Kafka releases, or of all,
and record the classes that their servers load."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from zkconsumer.errors import ClusterError
from zkconsumer.servers.jars import KAFKA_LINES, KRAFT_LINES, class_archive, fetch_jars, java
from zkconsumer.servers.local_cluster import LocalCluster
from zkconsumer.servers.servers import BROKER_MAIN, ZOOKEEPER_MAIN

_WRITE_SECONDS: Final = 300.0


def record_classes(kafka: str) -> None:
    """Write the class archives of one release's servers, unless they exist.

    When a server ends, Java writes an archive with all classes that it has loaded. Raises
    ``ClusterError``, and ``OSError`` if an archive cannot be written.
    """
    broker = class_archive(kafka, BROKER_MAIN)
    zookeeper = class_archive(kafka, ZOOKEEPER_MAIN)
    last = broker if kafka in KRAFT_LINES else zookeeper
    if last.exists():
        return
    broker.unlink(missing_ok=True)  # Java does not record a server that uses an archive
    with tempfile.TemporaryDirectory(dir=broker.parent) as folder:
        written = Path(folder) / "classes.jsa"
        options = os.environ.get("JDK_JAVA_OPTIONS")
        record = f'"-XX:ArchiveClassesAtExit={written}"'
        os.environ["JDK_JAVA_OPTIONS"] = f"{options} {record}" if options else record
        try:
            with LocalCluster(kafka, dir=folder) as cluster:
                for server in reversed(cluster.servers):
                    server.stop(_WRITE_SECONDS)
                    written.replace(zookeeper if server.name == "zookeeper" else broker)
        finally:
            del os.environ["JDK_JAVA_OPTIONS"]
            if options is not None:
                os.environ["JDK_JAVA_OPTIONS"] = options


def main() -> int:
    """Fetch and record everything that is not cached yet. Return the exit status."""
    try:
        java()
        for kafka in sys.argv[1:] or KAFKA_LINES:
            fetch_jars(kafka)
            try:
                record_classes(kafka)
            except (ClusterError, OSError) as error:
                sys.stderr.write(f"warning: Kafka {kafka} will start more slowly: {error}\n")
    except ClusterError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
