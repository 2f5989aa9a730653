"""An S3 server on loopback (moto), for tests that read logs from it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer
from pyarrow import fs

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
}
"""What clients of the server need in their environment."""


@dataclass(frozen=True, slots=True)
class S3:
    """A bucket on a running server."""

    address: str
    bucket: str = "logs"

    @property
    def options(self) -> str:
        """The options with which a URL reaches this server."""
        return f"?endpoint_override={self.address}&scheme=http&region=us-east-1"

    def url(self, path: str, scheme: str = "s3") -> str:
        """The URL of a path in the bucket."""
        return f"{scheme}://{self.bucket}/{path}{self.options}"

    def upload(self, directory: Path, to: str) -> None:
        """Copy a local directory into the bucket."""
        system = fs.S3FileSystem(endpoint_override=self.address, scheme="http", region="us-east-1")
        fs.copy_files(str(directory), f"{self.bucket}/{to}", destination_filesystem=system)


@contextmanager
def server() -> Iterator[S3]:
    """Start a server with one empty bucket; stop it at the end."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # one line for each request
    running = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    try:
        host, port = running.get_host_and_port()
        found = S3(f"{host}:{port}")
        reset = Request(f"http://{found.address}/moto-api/reset", method="POST")
        urlopen(reset, timeout=30).close()  # servers of one process share their buckets
        system = fs.S3FileSystem(
            endpoint_override=found.address,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        system.create_dir(found.bucket)
        yield found
    finally:
        running.stop()
